"""Stores that answer as those of v0.3 did."""
