"""Hashes of what a step trained, and the chain that binds a run's records."""
