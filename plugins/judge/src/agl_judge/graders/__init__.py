"""Graders that come with the plugin: what a run's ``group_reward`` names."""
