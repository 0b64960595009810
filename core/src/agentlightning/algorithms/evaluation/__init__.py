"""Evaluation, and what a run does because of it."""
