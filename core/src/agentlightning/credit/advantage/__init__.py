"""Baselines: credit to advantages, within the groups that are compared."""
