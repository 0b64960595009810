"""Runners lease rollouts from the store and run the user's agent on them."""

from __future__ import annotations

from agentlightning.runner.outcome import Outcome, settle
from agentlightning.runner.runner import Runner

__all__ = ["Outcome", "Runner", "settle"]
