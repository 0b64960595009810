"""Generators of the library reasoning-gym as tasks, with their own exact graders.

    agent: {target: "agl_examples.bundled.reasoning_gym:solver"}
    environment:
      train:
        target: "agl_examples.bundled.reasoning_gym:tasks"
        args: {generator: chain_sum, size: 400}
      val:
        target: "agl_examples.bundled.reasoning_gym:tasks"
        args: {generator: chain_sum, size: 64, seed: 1000000}

A task holds the question, and how the generator makes its entry anew; the grader does that, so the right
answer is in no task. Entry ``i`` of a generator with ``seed`` is drawn from ``seed + i``: seeds that are
further apart than the size of a set give other entries.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from agentlightning.capture.delivery import COUNTS
from agentlightning.types import UsageError
from agl_examples.bundled.agent import Agent
from agl_examples.bundled.task_set import answer_of

INSTALL = "pip install 'reasoning-gym>=0.1.25,<0.2'"
COMPARED = 8
"""Entries that are drawn twice, to see whether the seed determines them."""
SYSTEM = "Solve the problem. Give the final answer alone between <answer> and </answer>."
Task = dict[str, Any]


def tasks(generator: str, size: int, seed: int = 0, config: Mapping[str, Any] | None = None) -> list[Task]:
    """Return ``size`` tasks of a generator. ``config``: its own parameters. Raise :class:`.UsageError` for a
    generator that does not exist or that its seed does not determine, and for parameters that it refuses.
    """
    given = dict(config or {})
    described = json.dumps(given, sort_keys=True)
    made, again = _dataset(generator, size, seed, described), _made(generator, size, seed, described)
    if any(made[index] != again[index] for index in range(min(size, COMPARED))):
        raise UsageError(
            f"reasoning-gym: {generator} draws other entries for the same seed, so no answer could be graded"
        )
    how = {"generator": generator, "size": size, "seed": seed, "config": given}
    return [{"question": made[index]["question"], **how, "index": index} for index in range(size)]


def grade(task: Mapping[str, Any], text: str) -> float:
    """Return the generator's own score of an answer, 0 to 1: of what stands in the last ``<answer>``, else of
    the whole text. An answer that the grader cannot read is 0, and counted as ``answer-not-read``.
    """
    described = json.dumps(task["config"], sort_keys=True)
    made = _dataset(task["generator"], task["size"], task["seed"], described)
    entry = made[task["index"]]
    try:
        return float(made.score_answer(answer_of(text), entry))
    except Exception:
        # Some graders raise for a text that is no answer. One that raises for its own answer is broken.
        made.score_answer(entry["answer"], entry)
        COUNTS.add("answer-not-read")
        return 0.0


@functools.lru_cache(maxsize=64)
def _dataset(generator: str, size: int, seed: int, config: str) -> Any:
    return _made(generator, size, seed, config)


def _made(generator: str, size: int, seed: int, config: str) -> Any:
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise UsageError(f"the library reasoning-gym is not installed: {INSTALL}") from None
    if generator not in DATASETS:
        raise UsageError(
            f"reasoning-gym has no generator {generator!r}; it has {', '.join(sorted(DATASETS))}"
        )
    try:
        return reasoning_gym.create_dataset(generator, size=size, seed=seed, **json.loads(config))
    except (AssertionError, TypeError, ValueError) as error:
        raise UsageError(f"reasoning-gym: {generator}: {error}") from None


solver = Agent("solver", SYSTEM, [], grade=grade)
"""The bundled agent, which answers in one call."""
