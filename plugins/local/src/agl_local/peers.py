"""Train several policies in one run: one driver each, on steps that all share.

Each policy has its own driver, and all drivers call one shared job. The job collects a step once all drivers
have asked for it and splits the rows by policy; the drivers update one after another (they share a machine
and torch's random state); the gateway lets no call pass until the last driver serves its new version.
Invariants: no rollout sees one policy before an update and another after it; no policy is more than one
checkpoint ahead of another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from agentlightning.algorithms.journal import policy_home
from agentlightning.credit.accounts import policy_batch
from agentlightning.gateway.base import RunGateway
from agentlightning.specs import Driver, Job
from agentlightning.types import Batch, Evaluation, Progress, StepReport, UsageError
from agentlightning.types.base import ConfigError
from agentlightning.types.work import PolicyFolder

log = logging.getLogger(__name__)
T = TypeVar("T")
PATIENCE = 60.0
"""Seconds to wait for calls at the engines after a step was collected."""
SHARED_OPTIONS = ("save_every", "deterministic")
"""Options that must be equal for all policies of a run."""


class CheckpointMismatch(UsageError):
    """One policy has checkpoints that another lacks; the message says which and what to do."""


class PeerDriver(Driver, Protocol):
    """A driver that can train beside others in one run, each a policy of its own.

    Each calls its job once for each step, at the same steps: ``collect``, ``report``, ``saved`` where it
    saves, ``evaluate``. Older checkpoints are removed after ``saved`` returned, not before.
    """

    async def checkpoints(self, folder: Path) -> list[int]:
        """Numbers of finished steps that have a complete checkpoint in the run's ``folder``."""

    async def resume(self, folder: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
        """As :meth:`Driver.resume`. ``step``: load the checkpoint of that many finished steps (0: none) and
        remove later ones.
        """


def train_together(
    policies: Sequence[PolicyFolder], drivers: Mapping[str, PeerDriver], gateway: RunGateway
) -> MultiPolicyDriver:
    """Return the drivers of a run with named policies as one. :class:`ConfigError` for policies whose options
    do not go together.
    """
    for key in SHARED_OPTIONS:
        values = {folder.name: folder.options.get(key) for folder in policies}
        if len({repr(value) for value in values.values()}) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            raise ConfigError(
                f"options.{key}: the driver needs one value for all policies of a run ({listed}); set it in "
                "the options of the run"
            )
    return MultiPolicyDriver(drivers, gateway)


class MultiPolicyDriver:
    """The drivers of a run with named policies, and the gateway before their engines."""

    def __init__(self, drivers: Mapping[str, PeerDriver], gateway: RunGateway) -> None:
        self.drivers = dict(drivers)
        self.gateway = gateway

    @property
    def version(self) -> int:
        """Return the sum of the versions, which grows with each update."""
        return sum(driver.version for driver in self.drivers.values())

    async def resume(self, folder: Path) -> tuple[int, dict[str, Any]]:
        """Resume from the last step of which every policy has a complete checkpoint, and remove later
        checkpoints. Return ``(0, {})`` if there is no such step. Raise :class:`CheckpointMismatch` if a
        policy lacks more than one checkpoint.
        """
        places = {name: policy_home(folder, name) for name in self.drivers}
        steps = {name: await driver.checkpoints(places[name]) for name, driver in self.drivers.items()}
        common = max(set.intersection(*map(set, steps.values())), default=0)
        _check_same_step(steps, common)
        states = [await driver.resume(places[name], common) for name, driver in self.drivers.items()]
        return common, states[0][1]

    async def run(self, job: Job) -> None:
        """Run all drivers on ``job``. The first error ends all."""
        shared = SharedJob(job, list(self.drivers), self.gateway)
        tasks = [
            asyncio.create_task(shared.run_driver(name, driver), name=f"driver {name}")
            for name, driver in self.drivers.items()
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.gateway.release()

    async def export(self, folder: Path) -> Path:
        """Write every policy to ``folder/<its name>``; return ``folder``."""
        for name, driver in self.drivers.items():
            await driver.export(folder / name)
        return folder


class Barrier:
    """A barrier: the last driver that arrives at a point does its work, once, for all drivers."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._waiting: dict[str, str] = {}
        """Waiting drivers and their points."""
        self._left: set[str] = set()
        self.working = False
        """Whether all have arrived and the last does the work."""
        self._done: asyncio.Future[Any] | None = None

    async def __call__(self, name: str, point: str, work: Callable[[], Awaitable[T]]) -> T:
        """Wait for the other drivers; all get the result of ``work``, or its error. Raise ``RuntimeError``
        if a driver waits at another point.
        """
        self._waiting[name] = point
        if self._left or len(set(self._waiting.values())) > 1:
            raise self._out_of_step()
        if self._done is None:
            self._done = asyncio.get_running_loop().create_future()
        done = self._done
        if len(self._waiting) < len(self._names):
            result: T = await asyncio.shield(done)  # a cancelled driver does not cancel the work
            return result
        self._waiting, self._done, self.working = {}, None, True
        try:
            result = await work()
        except asyncio.CancelledError:
            done.cancel()
            raise
        except BaseException as error:
            done.set_exception(error)
            done.exception()  # asyncio logs an error that nobody retrieves
            raise
        finally:
            self.working = False
        done.set_result(result)
        return result

    def leave(self, name: str) -> None:
        """Note that driver ``name`` has ended; drivers that wait for it get an error."""
        self._left.add(name)
        if self._done is not None and not self._done.done():
            self._done.set_exception(self._out_of_step())
            self._done.exception()  # asyncio logs an error that nobody retrieves

    def _out_of_step(self) -> RuntimeError:
        where = [f"{name} is at {point}" for name, point in sorted(self._waiting.items())]
        where += [f"{name} has ended" for name in sorted(self._left)]
        return RuntimeError(f"the drivers of a run with several policies are out of step: {', '.join(where)}")


class SharedJob:
    """One job, shared by the drivers of several policies."""

    def __init__(self, job: Job, names: Sequence[str], gateway: RunGateway) -> None:
        self.job = job
        self.names = list(names)
        self.gateway = gateway
        self.barrier = Barrier(names)
        self.reports: dict[str, StepReport] = {}
        self.saved: dict[str, Path] = {}
        self.turns: dict[str, asyncio.Event] = {}
        """Set once the policies before this one are updated."""

    async def run_driver(self, name: str, driver: PeerDriver) -> None:
        """Run one driver from first to last step."""
        try:
            await driver.run(PolicyJob(self, name))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Something else cancelled it: an error ends the drivers that wait for it.
            raise RuntimeError(f"the driver of policy {name!r} was cancelled") from None
        self.barrier.leave(name)
        for turn in self.turns.values():  # the drivers after this one need not wait
            turn.set()

    async def collect(self, step: int) -> dict[str, Batch]:
        """Collect the step and split it. No call passes until all drivers serve their new versions."""
        batch = await self.job.collect(step)
        await self.gateway.hold()
        if not await self.gateway.drain(PATIENCE):
            log.warning("calls are still at the engines %g s after step %d was collected", PATIENCE, step)
        self.turns = {name: asyncio.Event() for name in self.names}
        self.turns[self.names[0]].set()
        return {name: policy_batch(batch, name) for name in self.names}

    def next(self, name: str) -> None:
        """Let the policy after ``name`` update."""
        for after in self.names[self.names.index(name) + 1 :][:1]:
            self.turns[after].set()

    async def report(self) -> None:
        """Report all policies after their updates. Only the first report holds the seconds of the
        rollouts, which all policies share."""
        await self.gateway.release()
        for name in self.names:
            report = self.reports.pop(name)
            if name != self.names[0]:
                report.seconds.pop("rollout", None)
            await self.job.report(report)

    async def announce_saved(self, step: int) -> None:
        """Announce the checkpoints of all policies."""
        for name in self.names:
            await self.job.saved(self.saved.pop(name), step)


class PolicyJob:
    """The job for the driver of one policy (:class:`agentlightning.specs.Job`)."""

    alone = False

    def __init__(self, shared: SharedJob, policy: str) -> None:
        job = shared.job
        self.shared = shared
        self.policy = policy
        self.run_id = job.run_id
        self.recipe = job.recipe
        self.first_step = job.first_step
        self.seed = job.seed
        self.folder = policy_home(job.folder, policy)

    @property
    def steps(self) -> int:
        """Return the steps in all, which policies share."""
        return self.shared.job.steps

    async def collect(self, step: int) -> Batch:
        """Return the policy's batch of the step once the policies before it are updated."""
        parts = await self.shared.barrier(self.policy, f"collect {step}", lambda: self.shared.collect(step))
        await self.shared.turns[self.policy].wait()
        return parts[self.policy]

    def progress(self, progress: Progress) -> None:
        """Say how far this policy's work is."""
        self.shared.job.progress(msgspec.structs.replace(progress, policy=self.policy))

    async def report(self, report: StepReport) -> None:
        """Let the next policy update; wait until all policies are updated and reported."""
        self.shared.reports[self.policy] = report
        self.shared.next(self.policy)
        await self.shared.barrier(self.policy, f"report {report.step}", self.shared.report)

    async def evaluate(self, step: int) -> Evaluation | None:
        """Evaluate all policies together, once."""
        return await self.shared.barrier(
            self.policy, f"evaluate {step}", lambda: self.shared.job.evaluate(step)
        )

    def state(self) -> dict[str, Any]:
        """Return the shared job's state, which every policy's checkpoint holds."""
        return self.shared.job.state()

    async def saved(self, folder: Path, step: int) -> None:
        """Return once every policy has its checkpoint of this step."""
        self.shared.saved[self.policy] = folder
        await self.shared.barrier(self.policy, f"saved {step}", lambda: self.shared.announce_saved(step))

    async def hold(self) -> None:
        """Hold calls of this policy before its engine; calls of other policies pass."""
        await self.shared.gateway.hold(self.policy)

    async def release(self) -> None:
        """Let calls of this policy pass again."""
        await self.shared.gateway.release(self.policy)


def _check_same_step(steps: Mapping[str, Sequence[int]], common: int) -> None:
    """Log which checkpoints after step ``common`` will be removed. Raise :class:`CheckpointMismatch` if a
    policy has several checkpoints that another lacks.
    """
    for name, found in steps.items():
        ahead = [step for step in found if step > common]
        if len(ahead) > 1:
            others = ", ".join(f"{n}: {', '.join(map(str, of)) or 'none'}" for n, of in steps.items())
            raise CheckpointMismatch(
                f"policy {name!r} has checkpoints of steps {', '.join(map(str, ahead))} that another policy "
                f"lacks ({others}); bring those back, or remove these folders to go on from step {common}"
            )
        for step in ahead:
            log.warning(
                "policy %r: its checkpoint of step %d is removed, because another policy has none of it; the "
                "run goes on from step %d",
                name,
                step,
                common,
            )
