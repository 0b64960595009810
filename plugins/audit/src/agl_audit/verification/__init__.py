"""Recompute a run from its store and compare it with what was recorded."""
