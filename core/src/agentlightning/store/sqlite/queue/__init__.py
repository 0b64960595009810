"""Rollouts, leases and attempts: the queue of work."""
