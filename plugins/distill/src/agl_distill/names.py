"""Names by which runs, recipes and links know this plugin."""

NAME = "distill"
"""The recipe, the field of a run, and the edit in a run's chain."""
RULE = "teacher"
"""The credit rule that reads no reward."""
