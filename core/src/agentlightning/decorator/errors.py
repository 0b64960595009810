"""What can be wrong with an agent and its reward function."""

from __future__ import annotations

from agentlightning.types import UsageError


class AgentError(UsageError, TypeError):
    """Something that cannot be run as an agent, with what it would need."""


class RewardFailed(UsageError):
    """A reward function raised, or could not be asked: the attempt fails as if its agent had raised."""


class BadReward(UsageError, ValueError):
    """A reward function gave what is no finite number: the attempt fails as ``bad-reward``."""
