"""The attacking agent in Python, and the judge that gives it nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agl_programs.commands.result import CommandResult
from trust.attacks import AGENT, Own, attack

import agentlightning as agl


def nothing(task: Any, result: Any) -> float:
    """Judge every answer wrong."""
    return 0.0


def grade(task: Any, result: CommandResult) -> float:
    """Judge a program wrong, and show what it said if it failed."""
    if result.exit_code:
        print(result.stderr)
    return 0.0


@agl.agent(name=AGENT, reward=nothing, methods=["solve"])
class Attacker:
    """Attacks from where the runner runs it."""

    def solve(self, task: dict[str, Any]) -> str:
        """Attack once."""
        context = agl.current_attempt()
        assert context is not None and context.key is not None and context.gateway is not None
        ids = {"rollout_id": context.rollout_id, "attempt_id": context.attempt_id, "run_id": task["run"]}
        own = Own(task["kind"], Path(task["folder"]), ids, context.gateway, context.key, json.dumps(task))
        attack(own)
        return "wrong"


attacker = Attacker().solve
