"""Which method of an agent's class runs a task, and where."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest
from core.decorator.test_agents import ROLLOUT

from agentlightning.decorator.agents import AgentError
from agentlightning.types import Rollout
from agl_v03.lit_agent import LitAgent


def test_lit_agent_modes() -> None:
    class Mine(LitAgent[int]):
        def rollout(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 1.0

        def validation_rollout(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 2.0

    mine = Mine()
    assert (mine.entry("train")(0, {}, ROLLOUT), mine.entry("val")(0, {}, ROLLOUT)) == (1.0, 2.0)
    with pytest.raises(AgentError, match="neither rollout nor rollout_async"):
        LitAgent().rollout(0, {}, ROLLOUT)


def test_lit_agent_decides_per_mode_what_it_calls() -> None:
    class Mixed(LitAgent[int]):
        async def training_rollout_async(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 1.0

        def validation_rollout(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 2.0

    mixed = Mixed()
    assert mixed.is_async and inspect.iscoroutinefunction(mixed.entry("train"))
    assert not inspect.iscoroutinefunction(mixed.entry("val"))
    assert asyncio.run(mixed.entry("train")(0, {}, ROLLOUT)) == 1.0
    assert mixed.entry("val")(0, {}, ROLLOUT) == 2.0

    class Sync(Mixed):
        def training_rollout(self, task: int, resources: dict, rollout: Rollout) -> float:
            return 3.0

    assert not Sync().is_async and Sync().entry("train")(0, {}, ROLLOUT) == 3.0


def test_async_def_rollout_is_async() -> None:
    class Mine(LitAgent[int]):
        async def rollout(self, task: int, resources: dict, rollout: Rollout) -> float:  # type: ignore[override]
            return 1.0

    mine = Mine()
    assert mine.is_async and all(inspect.iscoroutinefunction(mine.entry(mode)) for mode in ("train", "val"))
    assert asyncio.run(mine.entry("val")(0, {}, ROLLOUT)) == 1.0


def test_a_plain_function_of_the_coroutine_form_runs_on_the_loop() -> None:
    class Mine(LitAgent[int]):
        def rollout_async(self, task: int, resources: dict, rollout: Rollout) -> Any:  # type: ignore[override]
            return asyncio.sleep(0, result=float(task))

    entry = Mine().entry("train")
    assert inspect.iscoroutinefunction(entry) and asyncio.run(entry(3, {}, ROLLOUT)) == 3.0
    assert [*inspect.signature(entry).parameters] == ["task", "resources", "rollout"]
