"""Plugins with further names and arguments of a trainer, parts of a run, and other ways to call an agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import agentlightning as agl
from agentlightning.algorithms.evaluations import read_sets
from agentlightning.capture.context import AttemptContext
from agentlightning.gateway import Gateway
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins import manager
from agentlightning.plugins.manager import NotInstalled, Plugins, build
from agentlightning.plugins.stores import open_store
from agentlightning.runner.agent import HostedAgent, hosted
from agentlightning.runner.outcome import Outcome, read_return
from agentlightning.runner.runner import Runner
from agentlightning.runner.settings import RunnerSection
from agentlightning.specs import GatewayJob, RunServiceSpec, SectionSpec
from agentlightning.store import SQLiteStore, StoreError
from agentlightning.store.sqlite.lock import FileLock, Locked
from agentlightning.train import config
from agentlightning.train.config import from_fields
from agentlightning.train.configured import evaluation_set
from agentlightning.train.run_file import load_config
from agentlightning.types import Rollout, UsageError
from agentlightning.types.base import ConfigError

CLUSTER = r"pip install -c constraints\.txt \./core \./plugins/cluster"
FOLDERS = r"\./core \./plugins/trackers \./plugins/audit \./plugins/cluster \./plugins/v03"
INSTALL = rf"pip install -c constraints\.txt {FOLDERS}"


@pytest.fixture
def plugins(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    """The process's plugins are the one of the test, or none."""
    loaded = build([request.param] if request.param else [], discover=False)
    monkeypatch.setattr(manager, "load", lambda: loaded)
    return loaded


# ------------------------------------------------------------------------------------------------- names
class Attic:
    """Has a name, a name in a module of core, and a module."""

    @hookimpl
    def agl_names(self) -> dict[str, str]:
        return {"trunk": "string:ascii_lowercase"}

    @hookimpl
    def agl_missing(self, module: str, name: str) -> Any:
        if (module, name) == ("semconv", "CHEST"):
            return "chest"
        if (module, name) == ("attic", ""):
            return spec_from_loader("agentlightning.attic", loader=None)
        if name == "cellar":
            raise UsageError("there is no cellar, use the attic")
        return None


@pytest.mark.parametrize("plugins", [Attic()], indirect=True)
def test_a_plugin_has_names_and_modules(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    assert manager.missing("", "trunk") == "abcdefghijklmnopqrstuvwxyz"
    assert agl.semconv.CHEST == "chest"
    found = find_spec("agentlightning.attic")
    assert isinstance(found, ModuleSpec) and found.name == "agentlightning.attic"
    with pytest.raises(UsageError, match="use the attic"):
        agl.cellar  # noqa: B018 - the access is the test
    with pytest.raises(AttributeError, match="has no attribute 'roof'"):
        agl.roof  # noqa: B018
    with pytest.raises(AttributeError):
        agl._private  # noqa: B018


@pytest.mark.parametrize("plugins", [None], indirect=True)
def test_a_name_of_a_plugin_that_is_not_there_says_how_to_install_it(plugins: Plugins) -> None:
    for module, name in (("", "InMemoryLightningStore"), ("tracer.base", ""), ("types", "Task")):
        with pytest.raises(NotInstalled, match=INSTALL):
            manager.missing(module, name)
    assert manager.missing("", "nonsense") is None and manager.missing("nonsense", "") is None


def test_a_plugin_that_lacks_a_module_while_it_is_loaded_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def loading() -> Plugins:
        asked.append(manager.missing("attic", ""))
        return build([Attic()], discover=False)

    monkeypatch.setattr(manager, "load", loading)
    assert manager.missing("semconv", "CHEST") == "chest" and asked == [None]


# ------------------------------------------------------------------------------------------------- trainer
class Part:
    def __init__(self, flavour: str) -> None:
        self.flavour = flavour

    def begin(self, trainer: Any) -> None:
        trainer.flavour = self.flavour

    def fit(self, trainer: Any, agent: Any, given: dict[str, Any]) -> dict[str, Any] | None:
        tasks = given.pop("tasks", None)
        if tasks is not None:
            given["train_dataset"] = tasks
        return {"tasted": trainer.flavour} if trainer.flavour == "sour" else None


class Kitchen:
    @hookimpl
    def agl_trainer_arguments(self, given: dict[str, Any]) -> Part:
        given["concurrency"] = given.pop("cooks", 1)
        return Part(given.pop("flavour", "sweet"))


class Waiter:
    """Is asked too: the part of another plugin does not keep it from putting fields in."""

    @hookimpl
    def agl_trainer_arguments(self, given: dict[str, Any]) -> None:
        given["batch_size"] = given.pop("plates")


def test_a_plugin_takes_arguments_of_a_trainer(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "output": tmp_path, "trackers": [], "plugins": build([Waiter(), Kitchen()], discover=False),
        "cooks": 2, "plates": 3,
    }  # fmt: skip
    made = agl.Trainer(agl.Baseline(), **given)
    assert (made.flavour, made.config.agent.concurrency, made.config.training.batch_size) == ("sweet", 2, 3)
    assert made.fit(lambda task: 1.0, tasks=["a"])["baseline"]["train"]["reward"] == 1.0
    made.flavour = "sour"
    assert made.fit(lambda task: 1.0) == {"tasted": "sour"}
    with pytest.raises(AttributeError, match="no attribute 'cooks'"):
        made.cooks  # noqa: B018 - the access is the test


def test_arguments_of_a_plugin_that_is_not_there_say_how_to_install_it() -> None:
    with pytest.raises(TypeError, match=f"Trainer has no field 'tracer': it comes with agl-v03.*{INSTALL}"):
        agl.Trainer(plugins=build(discover=False), tracer=None)  # type: ignore[call-arg]


@pytest.mark.parametrize("key", ["metrics: {port: 0}", "gateway: {gateways: 2}"])
def test_fields_of_a_plugin_that_is_not_there_say_how_to_install_it(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "load_plugins", lambda: build(discover=False))
    (tmp_path / "run.yaml").write_text(f"agent: {{target: m:a}}\n{key}\n")
    with pytest.raises(ConfigError, match=rf"it comes with agl-cluster.*{CLUSTER}"):
        load_config(tmp_path / "run.yaml")
    with pytest.raises(TypeError, match=rf"Trainer has no field 'gateways': it comes with .*{CLUSTER}"):
        config.from_fields({"gateways": 2})
    (tmp_path / "run.yaml").write_text("agent: {target: m:a}\ngateway: {over_length: truncate}\n")
    with pytest.raises(ConfigError, match=r"gateway.over_length: .*comes with agl-gateway.*plugins/gateway$"):
        load_config(tmp_path / "run.yaml")


def test_a_task_set_of_a_plugin_that_is_not_there_says_how_to_install_it() -> None:
    line = r"it comes with agl-examples, .*pip install -c constraints\.txt \./core \./plugins/examples$"
    with pytest.raises(UsageError, match=f"evaluation set 'sums': the task set math: {line}"):
        read_sets({"sums": "math"}, build(discover=False))
    with pytest.raises(ConfigError, match=f"evaluation.sets.sums: .* no task set is 'math': {line}"):
        evaluation_set("math", config.from_fields({}), "evaluation.sets.sums")


# ------------------------------------------------------------------------------------------------ services
class Lodger:
    """Lives with a run, and writes down what happens."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.seen: list[str] = []

    @hookimpl
    def agl_run_services(self) -> list[RunServiceSpec]:
        none = RunServiceSpec("nobody", lambda config: None, open_in=lambda config, folder: None)
        return [RunServiceSpec("within", open_in=self.open_in), RunServiceSpec("lodger", self.open), none]

    @asynccontextmanager
    async def open(self, config: Any) -> AsyncIterator[object]:
        self.seen.append(f"open {config.agent.name}, folders: {len([*self.output.iterdir()])}")
        yield Listener(self.seen)
        (folder,) = self.output.iterdir()
        with pytest.raises(Locked):  # nobody else begins with the folder yet
            FileLock(folder / "run")
        self.seen.append(f"closed, {(folder / 'within').read_text()}")

    @asynccontextmanager
    async def open_in(self, config: Any, folder: Path) -> AsyncIterator[object]:
        self.seen.append("open in the folder")
        yield Listener(self.seen)
        (folder / "within").write_text("after what is within")


class Listener:
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    @hookimpl
    def agl_run_started(self, run: dict[str, Any]) -> None:
        self.seen.append("started")

    @hookimpl
    def agl_run_finished(self) -> None:
        self.seen.append("finished")


def fit(folder: Path, *plugins: object, **given: Any) -> dict[str, Any]:
    trainer = agl.Trainer(
        agl.Baseline(), output=folder, trackers=[], plugins=build(plugins, discover=False), **given
    )
    return trainer.fit(half, [2.0])


def test_a_service_lives_from_before_the_folder_until_all_is_written(tmp_path: Path) -> None:
    lodger = Lodger(tmp_path)
    fit(tmp_path, lodger, name="mine")
    begun = ["open mine, folders: 0", "open in the folder"]
    assert lodger.seen == [*begun, *["started"] * 2, *["finished"] * 2, "closed, after what is within"]


def test_a_service_that_cannot_open_ends_the_run_and_leaves_no_folder(tmp_path: Path) -> None:
    class Full:
        @hookimpl
        def agl_run_services(self) -> list[RunServiceSpec]:
            return [RunServiceSpec("full", self.open)]

        @asynccontextmanager
        async def open(self, config: Any) -> AsyncIterator[object]:
            raise UsageError("there is no room")
            yield

    with pytest.raises(UsageError, match="there is no room"):
        fit(tmp_path / "runs", Full())
    assert not (tmp_path / "runs").exists()


def test_a_plugin_opens_the_gateway_of_a_run(tmp_path: Path) -> None:
    seen: list[str] = []

    class Doorkeeper:
        @hookimpl
        def agl_gateways(self, job: GatewayJob) -> Any:
            return self.open(job) if job.config.agent.name == "mine" else None

        @asynccontextmanager
        async def open(self, job: GatewayJob) -> AsyncIterator[Gateway]:
            gateway = Gateway(job.store, job.keys, job.config.gateway, job.calls, guards=job.guards)
            seen.append(await gateway.start())
            yield gateway
            await gateway.stop()
            seen.append("stopped")

    fit(tmp_path, Doorkeeper(), name="other")
    assert seen == []
    fit(tmp_path, Doorkeeper(), name="mine")
    assert seen[0].startswith("http://127.0.0.1:") and seen[1:] == ["stopped"]


class Numbers(BaseModel):
    lucky: int = 0


class Numbered:
    """Adds a field to an agent's section, and reads it."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @hookimpl
    def agl_sections(self) -> list[SectionSpec]:
        return [SectionSpec("numbers", "agent", lambda: Numbers)]

    @hookimpl
    def agl_gateways(self, job: GatewayJob) -> None:
        self.seen.append(job.config.agent.lucky)


def test_a_runs_fields_are_those_of_its_own_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = Numbered(), Numbered()
    fit(tmp_path, mine, lucky=7)
    given: dict[str, Any] = {"lucky": 3}
    agent: Any = from_fields({"name": "b"}, from_fields(given, plugins=build([mine], discover=False))).agent
    assert mine.seen == [7] and (agent.name, agent.lucky) == ("b", 3)
    loaded = build([other], discover=False)
    monkeypatch.setattr(config, "load_plugins", lambda: loaded)
    with pytest.raises(TypeError, match="Trainer has no field 'lucky'"):  # not ignored
        fit(tmp_path, lucky=7)


def test_places_that_a_missing_plugin_knows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = build(discover=False)
    with pytest.raises(StoreError, match=f"registered for http://.*{CLUSTER}"):
        open_store("http://127.0.0.1:1", plugins=alone)
    monkeypatch.setenv("AGL_STORAGE", f"file://{tmp_path}/kept")
    with pytest.raises(UsageError, match=r"AGL_STORAGE=file.*comes with agl-cluster.*/plugins/cluster\[s3\]"):
        fit(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_worker_processes_that_a_missing_plugin_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^isolation='process': it comes with agl-cluster, .*{CLUSTER}$"):
        fit(tmp_path / "runs", isolation="process")
    assert not [*(tmp_path / "runs").glob("*")]


# -------------------------------------------------------------------------------------------------- agents
class Twice(HostedAgent):
    """Calls the agent twice."""

    async def attempt(self, rollout: Rollout, context: AttemptContext, counts: Counter[str]) -> Outcome:
        counts["called"] += 1
        given = (rollout.input, context.resources, rollout)
        first = await self.call(rollout.mode, context, given)
        return read_return(first + await self.call(rollout.mode, context, given))


class Doubling:
    @hookimpl
    def agl_agents(self, agent: Any, trainer: Any) -> HostedAgent:
        return Twice(agent)


async def test_a_plugin_calls_an_agent_in_its_own_way() -> None:
    await called_twice("inline", build([Doubling()], discover=False))


async def called_twice(isolation: Any, plugins: Plugins) -> None:
    """Run an agent once, and assert that :class:`Doubling` called it, in the runner's process or another."""
    store = SQLiteStore(":memory:")
    settings = RunnerSection(concurrency=1, isolation=isolation, timeout_seconds=None)
    runner = Runner(half, store, settings, plugins=plugins)
    done = await runner.step(3.0)
    await runner.close()
    assert agl.find_final_reward(await store.spans(done.rollout_id)) == 3.0, done.reason
    assert runner.counts["called"] == 1 and runner.agent.runner is runner
    await store.close()


def half(task: float) -> float:
    return task / 2


def test_an_agent_of_no_plugin_is_called_as_the_runner_does() -> None:
    assert type(hosted(half, build(discover=False))) is HostedAgent
