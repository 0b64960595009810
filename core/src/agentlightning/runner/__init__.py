"""Runners lease rollouts from the store and run the user's agent on them."""
