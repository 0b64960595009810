"""Rewards that a function gave to stored rollouts, beside the rewards that the rollouts ended with.

Invariant: a version is what one function, with one content, gave. Another content is another version.
"""

from __future__ import annotations

from typing import Any, Literal

from agentlightning.types.base import Model
from agentlightning.types.record import Reward


class RewardVersion(Model):
    """A version of a run's rewards: the function that gave them, and the code that it was part of."""

    run_id: str
    name: str
    """By which commands choose it."""
    function: str
    """``module:function``."""
    digest: str
    """sha256 of the source of the function and of the file that holds it."""
    per: Literal["rollout", "call"] = "rollout"
    """What one call of the function gives a reward to."""
    agent: str | None = None
    """With ``per: call``: only the calls of this agent; else all."""
    code: dict[str, Any] = {}
    """``source`` (sha256 of the function's text), ``commit`` and ``dirty`` of its git repository, where it is
    in one, and ``versions`` of our packages."""
    create_time: float = 0.0


class Rescored(Model):
    """What a version has for one rollout: rewards, or the error of the function."""

    rollout_id: str
    version: str
    """Name of the version."""
    rewards: list[Reward] = []
    """In place of all rewards that the rollout ended with. Empty: the function said that it has none."""
    error: str | None = None
    """The function raised or returned no number: the rollout has no reward in this version."""
    traceback: str | None = None
