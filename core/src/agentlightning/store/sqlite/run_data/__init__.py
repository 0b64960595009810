"""Runs, steps, resources and statistics, and their deletion."""
