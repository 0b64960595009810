"""Runners lease rollouts from the store and run the user's agent on them."""

from __future__ import annotations

from agentlightning.runner.gates import CannotRun, Gate, RemoteGate, gate_from_env
from agentlightning.runner.outcome import Outcome, settle
from agentlightning.runner.runner import Runner

__all__ = ["CannotRun", "Gate", "Outcome", "RemoteGate", "Runner", "gate_from_env", "settle"]
