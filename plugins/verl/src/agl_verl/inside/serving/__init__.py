"""Engines as verl's rollout replicas, and the weights they get."""
