"""The agent by the name that pages give it: ``module:solve``."""

from agent import solve

__all__ = ["solve"]
