"""Drivers of several policies on one job: they meet, take turns, and end together."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentlightning.algorithms.journal import policy_home
from agentlightning.gateway import Gateway
from agentlightning.keys import Keys
from agentlightning.recipes import GRPO
from agentlightning.specs import DriverGroup
from agentlightning.types import LLM, Batch, Evaluation, Progress, Row, StepReport
from agentlightning.types.base import ConfigError
from agentlightning.types.work import PolicyFolder
from agl_local.driver import LocalDriver
from agl_local.peers import (
    Barrier,
    CheckpointMismatch,
    MultiPolicyDriver,
    PolicyJob,
    SharedJob,
    train_together,
)


class Job:
    """A job of ``steps`` steps that says what was done."""

    def __init__(self, log: list[str], steps: int = 2) -> None:
        self.log, self.steps, self.first_step = log, steps, 0
        self.run_id, self.recipe, self.policy, self.seed, self.folder = "r", GRPO(), "by-agent", 0, Path("f")
        self.alone = True

    async def collect(self, step: int) -> Batch:
        self.log.append(f"collect {step}")
        rows = [row(name) for name in ("a", "b", "a")]
        return Batch(rows=rows, metrics={"rollouts": 3.0, "rows": 3.0}, policies={"a": {"rows": 2.0}})

    def progress(self, progress: Progress) -> None:
        pass

    async def report(self, report: StepReport) -> None:
        self.log.append(f"report {report.policy} {sorted(report.seconds)} {report.metrics}")

    async def evaluate(self, step: int) -> Evaluation | None:
        self.log.append(f"evaluate {step}")
        return None

    def state(self) -> dict[str, Any]:
        return {"kept": 1}

    async def saved(self, folder: Path, step: int) -> None:
        self.log.append(f"saved {folder.name} {step}")


def row(policy: str) -> Row:
    return Row("r", "ro", policy, [1], [1], [0.0], [0.0], [1.0], [0])


class Driver:
    """Does what a driver does, and says so."""

    supported_fields: frozenset[str] = frozenset()

    def __init__(self, name: str, log: list[str], steps: list[int] | None = None, ends: int = 99) -> None:
        self.name, self.log, self.steps, self.ends = name, log, steps or [], ends
        self.version = 0
        self.resumed: int | None = None
        self.fault: BaseException | None = None

    async def start(self) -> LLM:
        raise NotImplementedError

    async def checkpoints(self, folder: Path) -> list[int]:
        assert folder.parts[-2:] == ("policies", self.name)
        return self.steps

    async def resume(self, folder: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
        self.resumed = step
        return step or 0, {"state": step}

    async def run(self, job: Any) -> None:
        assert job.folder == policy_home(Path("f"), self.name) and job.state() == {"kept": 1}
        for step in range(min(job.steps, self.ends)):
            batch = await job.collect(step)
            self.log.append(f"update {self.name} {[r.policy for r in batch.rows]}")
            if self.fault is not None:
                raise self.fault
            await asyncio.sleep(0)
            self.version += 1
            seconds = {"rollout": 1.0, "update": 1.0}
            report = StepReport(
                run_id="r",
                step=step,
                policy=self.name,
                policy_version=1,
                metrics=batch.metrics,
                seconds=seconds,
            )
            await job.report(report)
            await job.saved(Path(f"{self.name}-{step}"), step + 1)
            await job.evaluate(step)

    async def export(self, folder: Path) -> Path:
        self.log.append(f"export {folder}")
        return folder

    async def close(self) -> None:
        raise NotImplementedError


class Gate:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def hold(self) -> None:
        self.log.append("pause")

    async def drain(self, timeout: float | None = None) -> bool:
        self.log.append("drain")
        return True

    async def release(self) -> None:
        self.log.append("resume")


async def test_a_step_from_all_sides() -> None:
    log: list[str] = []
    a, b = Driver("a", log), Driver("b", log)
    together = MultiPolicyDriver({"a": a, "b": b}, Gate(log))
    await together.run(Job(log, steps=2))
    one = [
        "pause",
        "drain",
        "update a ['a', 'a']",
        "update b ['b']",  # its turn comes when a serves its new version
        "resume",  # and calls pass when all do
        "report a ['rollout', 'update'] {'rollouts': 3.0, 'rows': 2.0}",
        "report b ['update'] {'rollouts': 3.0}",
    ]
    assert log == [
        "collect 0", *one, "saved a-0 1", "saved b-0 1", "evaluate 0",
        "collect 1", *one, "saved a-1 2", "saved b-1 2", "evaluate 1", "resume",
    ]  # fmt: skip
    assert a.version == b.version == 2 and together.version == 4
    await together.export(Path("p"))
    assert log[-2:] == ["export p/a", "export p/b"]


@pytest.mark.parametrize("which", ["a", "b"])
async def test_an_error_of_one_ends_all_and_opens_the_gate(which: str) -> None:
    log: list[str] = []
    drivers = {name: Driver(name, log) for name in ("a", "b", "c")}
    drivers[which].fault = KeyError("broken")
    with pytest.raises(KeyError, match="broken"):
        await MultiPolicyDriver(drivers, Gate(log)).run(Job(log))
    assert log[-1] == "resume" and not any(line.startswith("report") for line in log)


async def test_an_error_of_the_common_work_is_the_runs() -> None:
    log: list[str] = []
    job = Job(log)

    async def broken(step: int) -> Batch:
        raise ValueError("nothing came back")

    job.collect = broken  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="nothing came back"):
        await MultiPolicyDriver({"a": Driver("a", log), "b": Driver("b", log)}, Gate(log)).run(job)


@pytest.mark.parametrize(("first", "second"), [(1, 99), (99, 1), (0, 99)])
async def test_a_driver_that_ends_before_the_others_is_an_error(first: int, second: int) -> None:
    log: list[str] = []
    drivers = {"a": Driver("a", log, ends=first), "b": Driver("b", log, ends=second)}
    with pytest.raises(RuntimeError, match=r"out of step: .* has ended"):
        await MultiPolicyDriver(drivers, Gate(log)).run(Job(log, steps=3))


async def test_a_run_that_is_cancelled_leaves_no_task() -> None:
    log: list[str] = []
    job, waiting = Job(log), asyncio.Event()

    async def forever(step: int) -> Batch:
        waiting.set()
        await asyncio.Event().wait()
        raise AssertionError

    job.collect = forever  # type: ignore[method-assign]
    run = asyncio.create_task(
        MultiPolicyDriver({"a": Driver("a", log), "b": Driver("b", log)}, Gate(log)).run(job)
    )
    await waiting.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("driver ")]


async def test_those_who_meet_must_mean_the_same_point() -> None:
    meet = Barrier(["a", "b"])

    async def work() -> int:
        return 1

    first = asyncio.create_task(meet("a", "saved 2", work))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="a is at saved 2, b is at evaluate 1"):
        await meet("b", "evaluate 1", work)
    first.cancel()


@pytest.mark.parametrize(
    ("a", "b", "common"),
    [([2, 4], [2, 4], 4), ([2, 4], [2], 2), ([2], [], 0), ([], [], 0), ([4, 6], [2, 4], 4)],
)
async def test_a_run_goes_on_where_all_have_a_checkpoint(a: list[int], b: list[int], common: int) -> None:
    drivers = {"a": Driver("a", [], a), "b": Driver("b", [], b)}
    assert await MultiPolicyDriver(drivers, Gate([])).resume(Path("f")) == (common, {"state": common})
    assert drivers["a"].resumed == drivers["b"].resumed == common


async def test_checkpoints_that_no_kill_explains_are_not_removed() -> None:
    drivers = {"a": Driver("a", [], [2, 4]), "b": Driver("b", [], [])}
    with pytest.raises(CheckpointMismatch, match=r"'a' has checkpoints of steps 2, 4 .*b: none"):
        await MultiPolicyDriver(drivers, Gate([])).resume(Path("f"))
    assert drivers["a"].resumed is None


async def test_a_driver_that_is_cancelled_from_within_ends_the_run() -> None:
    """Nobody waits for it: a cancelled task is no error that ``asyncio.wait`` would return for."""
    for which in ("a", "b"):
        log: list[str] = []
        drivers = {name: Driver(name, log) for name in ("a", "b")}
        drivers[which].fault = asyncio.CancelledError()
        async with asyncio.timeout(300):
            with pytest.raises(RuntimeError, match=f"driver of policy '{which}' was cancelled"):
                await MultiPolicyDriver(drivers, Gate(log)).run(Job(log))
        assert log[-1] == "resume"


async def test_who_gives_up_waiting_takes_nothing_from_the_others() -> None:
    meet = Barrier(["a", "b", "c"])
    go = asyncio.Event()

    async def work() -> int:
        await go.wait()
        return 1

    a, b, c = (asyncio.create_task(meet(name, "saved 2", work)) for name in ("a", "b", "c"))
    while not meet.working:
        await asyncio.sleep(0)
    a.cancel()
    await asyncio.sleep(0)
    go.set()
    assert (await b, await c) == (1, 1)


async def test_what_is_removed_on_the_way_back_is_said(caplog: pytest.LogCaptureFixture) -> None:
    drivers = {"a": Driver("a", [], [2, 4]), "b": Driver("b", [], [2])}
    await MultiPolicyDriver(drivers, Gate([])).resume(Path("f"))
    assert "'a'" in caplog.text and "checkpoint of step 4" in caplog.text and "step 2" in caplog.text
    caplog.clear()
    await MultiPolicyDriver({"a": Driver("a", [], [2]), "b": Driver("b", [], [2])}, Gate([])).resume(
        Path("f")
    )
    assert not caplog.text


def test_options_that_must_be_the_same() -> None:
    policies = [
        PolicyFolder("a", True, {"save_every": 2}, "a"),
        PolicyFolder("b", True, {"save_every": 3}, "b"),
    ]
    drivers: dict[str, Any] = {one.name: LocalDriver(one, GRPO()) for one in policies}
    gate: Any = Gate([])
    with pytest.raises(ConfigError, match=r"options.save_every: .*\(a: 2, b: 3\)"):
        train_together(policies, drivers, gate)
    together = train_together([policies[0], replace(policies[1], options={"save_every": 2})], drivers, gate)
    assert isinstance(together, DriverGroup) and together.drivers == drivers and together.version == 0


async def test_a_driver_of_several_holds_its_own_policy() -> None:
    gate = Gateway(SimpleNamespace(), Keys(b"0" * 32))  # type: ignore[arg-type]
    job: Any = SimpleNamespace(run_id="r", recipe=None, steps=1, first_step=0, seed=1, folder=Path("f"))
    table = SharedJob(job, ["wolf", "villager"], gate)
    wolf, villager = (PolicyJob(table, name) for name in table.names)
    await wolf.hold()
    assert gate._gate.policies == ["wolf"]
    await villager.hold()
    await wolf.release()
    assert gate._gate.policies == ["villager"]
    await villager.release()
