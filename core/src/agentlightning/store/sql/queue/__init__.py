"""Rollouts, leases and attempts: the queue of work, and the resources that it is done with."""
