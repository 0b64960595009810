"""Calling the agent: the entry of its class, its hooks, and the framework adapters that it needs."""
