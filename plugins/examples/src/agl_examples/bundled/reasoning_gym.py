"""Generators of the library reasoning-gym as tasks, with their own exact graders.

    agent: {target: "agl_examples.bundled.reasoning_gym:solver"}
    environment:
      train:
        target: "agl_examples.bundled.reasoning_gym:tasks"
        args: {generator: chain_sum, size: 400}
      val:
        target: "agl_examples.bundled.reasoning_gym:tasks"
        args: {generator: chain_sum, size: 64, seed: 1000000}

``generator``: its name in reasoning-gym. ``size``: how many tasks. ``seed``: where they begin. ``config``:
the generator's own parameters (``{min_terms: 2, max_terms: 4}``). ``composite`` mixes others by weight:
``config: {datasets: [{name: chain_sum, weight: 2, config: {min_terms: 2}}, {name: gcd}]}``.

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
_REFUSALS = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What the library raises for parameters that it refuses, some of them only when an entry is drawn."""


def tasks(generator: str, size: int, seed: int = 0, config: Mapping[str, Any] | None = None) -> list[Task]:
    """Return ``size`` tasks of a generator, from ``seed`` on. ``config``: its own parameters. Raise
    :class:`.UsageError` for a generator that does not exist or that its seed does not determine, and for
    parameters that it refuses.
    """
    for name, value, kind in (("size", size, int), ("seed", seed, int), ("config", config or {}, Mapping)):
        if not isinstance(value, kind) or isinstance(value, bool):
            what = "a mapping of parameters" if kind is Mapping else "an integer"
            raise UsageError(f"reasoning-gym: {generator}: {name} is {value!r}; give {what}")
    given = dict(config or {})
    if beside := sorted(given.keys() & {"size", "seed"}):
        raise UsageError(f"reasoning-gym: {generator}: config has {beside}; give it beside config, not in it")
    try:
        described = json.dumps(given, sort_keys=True)
        made, again = _dataset(generator, size, seed, described), _made(generator, size, seed, described)
        entries = [made[index] for index in range(size)]
        differs = any(again[index] != entries[index] for index in range(min(size, COMPARED)))
    except _REFUSALS as error:
        raise UsageError(f"reasoning-gym: {generator} refuses its parameters: {error}") from error
    if differs:
        raise UsageError(
            f"reasoning-gym: {generator} draws other entries for the same seed, so no answer could be graded"
        )
    how = {"generator": generator, "size": size, "seed": seed, "config": given}
    return [{"question": one["question"], **how, "index": index} for index, one in enumerate(entries)]


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
        from reasoning_gym.composite import DatasetSpec
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise UsageError(f"the library reasoning-gym is not installed: {INSTALL}") from None
    if generator not in DATASETS:
        raise UsageError(
            f"reasoning-gym has no generator {generator!r}; it has {', '.join(sorted(DATASETS))}"
        )
    given = json.loads(config)
    if generator == "composite":  # it takes others as objects, which a configuration cannot hold
        others = given.get("datasets", ())
        given["datasets"] = [DatasetSpec(**{"weight": 1.0, "config": {}, **one}) for one in others]
    return reasoning_gym.create_dataset(generator, size=size, seed=seed, **given)


solver = Agent("solver", SYSTEM, [], grade=grade)
"""The bundled agent, which answers in one call."""
