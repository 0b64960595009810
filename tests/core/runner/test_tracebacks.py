"""The traceback of an agent's error is kept with its attempt: its own line first, bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from contract.running import finish, serving

from agentlightning.algorithms.evaluate import NothingRewarded, evaluate
from agentlightning.runner.tracebacks import LONGEST, format_traceback
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import Rollout
from agentlightning.types.failure import TRACEBACK


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    opened = SQLiteStore(":memory:")
    yield opened
    await opened.close()


def solve(task: str) -> Any:
    return json.loads(task)


async def kept(store: Store, agent: Any, task: Any, **options: Any) -> str | None:
    async with serving(agent, store, **options):
        [rollout] = await finish(store, [task])
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    assert attempt is not None
    return attempt.metadata.get(TRACEBACK)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_the_agents_own_line_is_first_and_ours_are_left_out(store: Store, kind: str) -> None:
    async def solve_async(task: str) -> Any:
        return solve(task)

    text = await kept(store, solve if kind == "sync" else solve_async, "no json")
    line = solve.__code__.co_firstlineno + 1
    assert text is not None and text.startswith(
        f"{Path(__file__)}:{line} in solve: `return json.loads(task)`\n"
    )
    assert text.endswith("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)")
    assert "agentlightning/runner" not in text and "agentlightning/decorator/agents.py" not in text


async def test_one_that_succeeds_has_none(store: Store) -> None:
    assert await kept(store, solve, "0.5") is None


def test_a_long_one_keeps_its_end() -> None:
    def deep(n: int) -> None:
        if not n:
            raise ValueError("x" * 2 * LONGEST)
        deep(n - 1)

    with pytest.raises(ValueError) as caught:
        deep(3)
    text = format_traceback(caught.value)
    assert text is not None and "characters left out" in text
    assert text.endswith("x" * LONGEST) and len(text) < LONGEST + 500


def test_an_error_that_cannot_be_read_has_a_traceback_or_none() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(Unreadable) as caught:
        raise Unreadable
    text = format_traceback(caught.value)
    assert text is not None and "Unreadable" in text
    assert format_traceback(Unreadable()) is None  # never raised


async def test_an_evaluation_of_which_nothing_came_shows_the_first(store: Store) -> None:
    async with serving(solve, store):
        with pytest.raises(NothingRewarded, match="none of 2 rollouts") as caught:
            await evaluate(store, "before", [Rollout(rollout_id=f"ro-{task}", input=task) for task in "ab"])
    assert "The first traceback" in str(caught.value) and "in solve: `return json.loads(task)`" in str(
        caught.value
    )
    assert caught.value.status == 3
