"""Runs with their steps, counts and statistics, and the deletion of runs."""
