"""Word problems as an environment of OpenEnv: an app that serves episodes, as any OpenEnv environment is.

An episode is a problem, chosen by the seed of its reset. The player writes text. A call of the calculator
within ``<tool_call>`` is answered with its result; any other text is the answer, which ends the episode and
is graded. Nothing of ours is imported but the problems.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any
from uuid import uuid4

from openenv.core.env_server import Action, Environment, Observation, State, create_app

from calc_x.calculator import calculate_text
from calc_x.datasets import load
from calc_x.grading import ANSWER_FORM, grade
from calc_x.problems import Problem

HELD_OUT = 100_000
"""Seeds from here on choose among the held-out problems."""
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


class Said(Action):
    """What the player writes."""

    message: str


class Shown(Observation):
    """What the player reads."""

    text: str


@cache
def problems(spec: str) -> list[Problem]:
    """Return the problems of a set."""
    return load(spec)


class WordProblems(Environment[Said, Shown, State]):  # type: ignore[misc]  # untyped where OpenEnv is missing
    """One problem, with a calculator."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Shown:
        """Choose a problem by the seed, and show it."""
        number = seed or 0
        chosen = problems("generated:heldout" if number >= HELD_OUT else "generated:train")
        self._problem = chosen[number % HELD_OUT % len(chosen)]
        self._state = State(episode_id=episode_id or str(uuid4()), step_count=0)
        return Shown(text=f"{self._problem['question']}\n\n{ANSWER_FORM}")

    def step(self, action: Said, timeout_s: float | None = None, **_: Any) -> Shown:
        """Calculate, or grade the answer."""
        self._state.step_count += 1
        if call := _CALL.search(action.message):
            return Shown(text=f"<tool_response>\n{_calculated(call[1])}\n</tool_response>", reward=0.0)
        reward = grade(action.message, str(self._problem["result"]))
        return Shown(text="", reward=reward, done=True)

    @property
    def state(self) -> State:
        """The episode and its steps so far."""
        return self._state


def _calculated(call: str) -> str:
    try:
        return calculate_text(str(json.loads(call)["arguments"]["expression"]))
    except (ValueError, KeyError, TypeError) as error:
        return f"no call of the calculator: {error}"


app = create_app(WordProblems, Said, Shown, env_name="word_problems", max_concurrent_envs=64)
