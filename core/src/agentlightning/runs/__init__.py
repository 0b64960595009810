"""Runs and their rollouts, opened from a folder, a store or a name."""
