"""Errors of agents and of their reward functions."""

from __future__ import annotations

from agentlightning.types import UsageError


class AgentError(UsageError, TypeError):
    """The object cannot be run as an agent; the message says what it needs."""


class RewardFailed(UsageError):
    """A reward function raised, or could not be called: the attempt fails as if its agent had raised."""


class BadReward(UsageError, ValueError):
    """A reward is no finite number: the attempt fails as ``bad-reward``."""
