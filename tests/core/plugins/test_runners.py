"""Runners outside the trainer's process: named in a run's description, checked, and run with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

import agentlightning as agl
from agentlightning.algorithms.context import Context
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import PluginError, build
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.specs import RemoteRunner, RunnerJob, RunnerSpec
from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import Section


class Options(Section):
    at_a_time: int = Field(default=4, ge=1)


class Elsewhere:
    """Runs the agent as a process elsewhere would: it knows the store, the run's id and the agent."""

    def __init__(self, job: RunnerJob, options: Options) -> None:
        self.counts: Counter[str] = Counter()
        self.job, self.options = job, options

    async def serve(self, stop: asyncio.Event) -> None:
        job, settings = self.job, RunnerSection(concurrency=self.options.at_a_time)
        runner = Runner(job.agent, job.store, settings, run_id=job.run_id)
        if self.options.at_a_time == 13:
            raise UsageError("thirteen is no number of workers")
        await runner.serve(stop)
        self.counts.update(runner.counts)


class Plugin:
    def __init__(self) -> None:
        self.made: list[Elsewhere] = []

    def make(self, job: RunnerJob, options: Options) -> RemoteRunner:
        self.made.append(Elsewhere(job, options))
        return self.made[-1]

    @hookimpl
    def agl_runners(self) -> list[RunnerSpec]:
        return [RunnerSpec("elsewhere", self.make, lambda: Options, "a place of its own")]


async def solve(task: float) -> float:
    return task


class Queued:
    """Runs each task once."""

    needs_policy = False

    async def run(self, context: Context) -> dict[str, Any]:
        store, run_id = context.store, context.run_id
        made = [await store.enqueue_rollout(task, run_id=run_id) for task in context.train]
        done = await store.wait_for_rollouts([one.rollout_id for one in made], timeout=300)
        return {"statuses": sorted(str(one.status) for one in done)}


def trainer(folder: Path, runner: Any, plugin: Plugin, **fields: Any) -> agl.Trainer:
    plugins = build([plugin], discover=False)
    given = {"trackers": [], "store": SQLiteStore(":memory:"), **fields}
    return agl.Trainer(Queued(), output=folder / "runs", plugins=plugins, runner=runner, **given)


@pytest.mark.parametrize("runner", ["elsewhere", {"kind": "elsewhere", "at_a_time": 2}])
def test_a_runs_agent_runs_where_its_description_says(tmp_path: Path, runner: Any) -> None:
    plugin = Plugin()
    summary = trainer(tmp_path, runner, plugin).fit(solve, [0.25, 0.5])
    assert summary["statuses"] == ["succeeded", "succeeded"]
    [made] = plugin.made
    assert made.counts == {"succeeded": 2} and made.options.at_a_time == (4 if runner == "elsewhere" else 2)
    assert made.job.run_id == summary["run_id"] and (made.job.gateway or "").endswith("/v1")


def test_an_error_of_the_runner_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="thirteen is no number of workers"):
        trainer(tmp_path, {"kind": "elsewhere", "at_a_time": 13}, Plugin()).fit(solve, [1.0])


@pytest.mark.parametrize(
    ("runner", "kind", "said"),
    [
        ({"kind": "elsewher"}, PluginError, "no runner is called 'elsewher'.*Did you mean 'elsewhere'"),
        (
            {"kind": "elsewhere", "at_atime": 1},
            ConfigError,
            "runner.at_atime: there is no such option. Did you",
        ),
        (
            {"kind": "elsewhere", "at_a_time": 0},
            ConfigError,
            "runner.at_a_time: .*greater than or equal to 1",
        ),
        ("ray", PluginError, r"the runner 'ray' is not installed.*pip install .*plugins/ray\[client\]"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_runs(
    tmp_path: Path, runner: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        trainer(tmp_path, runner, Plugin()).fit(solve, [1.0])
    assert not (tmp_path / "runs").exists()


def test_the_kind_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="runner: give kind, the name of a runner"):
        trainer(tmp_path, {"address": "auto"}, Plugin())
