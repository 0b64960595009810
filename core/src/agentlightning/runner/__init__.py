"""Runners lease rollouts from the store and run the user's agent on them."""

from __future__ import annotations

from agentlightning.runner.attempt_keys import (
    AttemptKeys,
    CannotRun,
    RemoteAttemptKeys,
    attempt_keys_from_env,
)
from agentlightning.runner.outcomes.outcome import Outcome, outcome_of_return
from agentlightning.runner.runner import Runner

__all__ = [
    "CannotRun",
    "AttemptKeys",
    "Outcome",
    "RemoteAttemptKeys",
    "Runner",
    "attempt_keys_from_env",
    "outcome_of_return",
]
