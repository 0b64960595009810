"""Runners lease rollouts from the store and run the user's agent on them."""

from __future__ import annotations

from agentlightning.runner.attempt_keys import (
    AttemptKeys as AttemptKeys,
    RemoteAttemptKeys as RemoteAttemptKeys,
    attempt_keys_from_env as attempt_keys_from_env,
)
from agentlightning.runner.outcomes.outcome import CannotRun as CannotRun
from agentlightning.runner.runner import Runner as Runner
