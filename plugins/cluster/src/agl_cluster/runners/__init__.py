"""Runners that are processes of their own: keys, signals, probes, and who starts them again."""
