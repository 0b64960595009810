"""Runners lease rollouts from the store and run the user's agent on them."""

from __future__ import annotations

from agentlightning.runner.attempt_keys import (
    AttemptKeys as AttemptKeys,
    CannotRun as CannotRun,
    RemoteAttemptKeys as RemoteAttemptKeys,
    attempt_keys_from_env as attempt_keys_from_env,
)
from agentlightning.runner.runner import Runner as Runner
