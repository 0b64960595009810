"""The trainer: one run from its configuration to its summary."""
