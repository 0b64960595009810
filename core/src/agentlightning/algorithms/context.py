"""The open run that an algorithm works with: its parts and data, what its agents get, and what it loses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agentlightning import specs
from agentlightning.algorithms.evaluate import Evaluations, evaluate
from agentlightning.algorithms.journal import Journal
from agentlightning.algorithms.tasks import group_rollouts
from agentlightning.capture import COUNTS
from agentlightning.credit.eligibility import Versions
from agentlightning.gateway.base import RunGateway
from agentlightning.keys import CONTEXT_KEY
from agentlightning.plugins.manager import Plugins
from agentlightning.specs import CallGuard, Comparison, DriverGroup, StartedDriver, WatchedDriver
from agentlightning.store.base import Store
from agentlightning.types import (
    LLM,
    AttemptStatus,
    Evaluation,
    Mode,
    Progress,
    Record,
    Resource,
    Rollout,
    RolloutConfig,
    UsageError,
)

Task = Any
T = TypeVar("T")
Dataset = Sequence[Task]


WATCH = 0.5
"""Seconds between two looks at the engines."""


class EngineDied(UsageError):
    """An engine ended by itself, so that no rollout could get an answer."""


class TrainingLoop(Protocol):
    """A loop over tasks; its result goes into the run's summary.

    It may say ``trains_policy = False``: then no policy is exported at the end; and ``needs_policy = False``:
    the run need not serve one. An object with a method ``bind(trainer)`` is asked for the loop by it.
    """

    async def run(self, context: Context) -> dict[str, Any]: ...


@dataclass(slots=True)
class AgentResources:
    """What the agents of a run get, stored as resources for each policy that answers them."""

    policy: str = "policy"
    """Model name under which agents ask for their policy."""
    named_policies: tuple[str, ...] = ()
    """Policies that agents may ask for by name, in a run with named policies."""
    compared: list[str] = field(default_factory=list)
    """Policies that the run's are compared with (hook ``agl_comparisons``)."""
    initial: dict[str, Resource | str | dict[str, Any]] = field(default_factory=dict)
    """Resources that agents get besides the policy."""
    serve_policy: bool = True
    """Whether agents get the policy as ``llm``; false if a user's algorithm trains no policy."""
    ids: dict[str, str] = field(default_factory=dict)
    """Policy name → id of the stored resources that point agents at it."""

    async def publish(self, store: Store, gateway: RunGateway) -> None:
        """Store endpoints of the policy and of those it is compared with. The gateways serve them by then."""
        await gateway.settle()
        first, *others = gateway.urls
        for name in (self.policy, *self.compared):
            bundle = dict(self.initial)
            if self.serve_policy or name != self.policy:
                for key, model in [("llm", name), *((named, named) for named in self.named_policies)]:
                    vocabulary, context = gateway.limits(model)
                    bundle[key] = LLM(
                        endpoint=first,
                        replicas=others,
                        model=model,
                        api_key=CONTEXT_KEY,
                        vocabulary=vocabulary,
                        context=context,
                    )
            if not bundle:
                continue
            if name in self.ids:  # the gateway of the run's earlier life is gone
                await store.update_resources(self.ids[name], bundle)
            else:
                self.ids[name] = (await store.add_resources(bundle)).resources_id


@dataclass(slots=True)
class Losses:
    """What a run counts outside its rollouts, beside the store and the gateway."""

    attempts: Counter[str] = field(default_factory=Counter)
    """Ends of the runner's attempts."""
    capture_before: dict[str, int] = field(default_factory=COUNTS.snapshot)
    """Capture's counts in this process before the run."""
    trackers: Counter[str] = field(default_factory=Counter)
    """Tracker → errors raised in it."""


@dataclass(slots=True)
class Context:
    """One run: its parts, its data, and how far it is. The trainer makes it, and closes what it holds."""

    run_id: str
    folder: Path
    store: Store
    gateway: RunGateway
    plugins: Plugins
    seed: int
    guards: Sequence[CallGuard] = ()
    """What admits and counts the run's calls, such as a budget."""
    comparisons: Sequence[Comparison] = ()
    """What the trained policy is compared with."""
    group_rewards: Sequence[specs.GroupReward] = ()
    """What gives rewards to groups of finished rollouts."""
    edits: Sequence[specs.BatchEdit] = ()
    """What changes the batches of its steps."""
    train: Dataset = ()
    val: Dataset = ()
    sets: dict[str, Dataset] = field(default_factory=dict)
    """Named evaluation sets."""
    driver: StartedDriver | None = None
    resources: AgentResources = field(default_factory=AgentResources)
    config: RolloutConfig = field(default_factory=RolloutConfig)
    """Attempts, timeouts and retries of rollouts."""
    evaluations: Evaluations = field(default_factory=Evaluations)
    losses: Losses = field(default_factory=Losses)
    first_step: int = 0
    """Steps that the run had finished when it was resumed."""
    progress: dict[str, Any] = field(default_factory=dict)
    """The algorithm's state in the checkpoint of ``first_step``."""
    earlier: Mapping[str, Any] = field(default_factory=dict)
    """The run's summary when it was resumed, if it had ended: its seconds count on."""
    runner: asyncio.Task[None] | None = None
    """The background runner; if it dies, the run must not wait for its rollouts."""
    say: Callable[[str], None] = print
    """Prints a line at the terminal."""
    journal: Journal = field(init=False)
    """Writes the run's chain."""

    def __post_init__(self) -> None:
        self.journal = Journal(self.store, self.run_id, self.folder)

    @property
    def policy(self) -> str:
        """Return the model name under which agents ask for their policy."""
        return self.resources.policy

    @property
    def versions(self) -> Versions:
        """Return the policy version about to be trained; of named policies, the version of each."""
        if isinstance(self.driver, DriverGroup):
            return {name: one.version for name, one in self.driver.drivers.items()}
        return self.driver.version if self.driver else None

    @property
    def drivers(self) -> Mapping[str, StartedDriver | None]:
        """Return trained policy → its driver."""
        return self.driver.drivers if isinstance(self.driver, DriverGroup) else {self.policy: self.driver}

    async def exhausted(self, *, last: bool = False) -> str | None:
        """Why no call is admitted any more; ``None`` while calls are. ``last``: the evaluation at the end is
        about to begin.
        """
        for guard in self.guards:
            if (why := await guard.exhausted(last=last)) is not None:
                return why
        return None

    def guarded(self) -> dict[str, Any]:
        """Return what the guards say in the run's record and summary, by their names (``budget``)."""
        return {guard.name: said for guard in self.guards if (said := guard.summary())}

    def rollouts(
        self, tasks: Dataset, samples: int, *, name: str, mode: Mode, policy: str | None = None, **fields: Any
    ) -> list[Rollout]:
        """Return ``samples`` rollouts of each task for batch ``name``, with ``policy`` (default: the trained
        one) and the run's settings; ``fields`` go to :func:`group_rollouts`.
        """
        if policy in self.resources.compared:  # a key opens no such policy but in its own evaluation
            fields["metadata"] = {**(fields.get("metadata") or {}), "policies": {"re:.*": policy}}
        fields = {
            "seed": self.seed,
            "config": self.config,
            "resources_id": self.resources.ids[policy] if policy else self.resources.ids.get(self.policy),
            **fields,
        }
        return group_rollouts(tasks, samples, run_id=self.run_id, name=name, mode=mode, **fields)

    async def evaluate(
        self,
        tasks: Dataset,
        *,
        name: str,
        policy: str | None = None,
        greedy: bool = True,
        mode: Mode = "val",
        samples: int = 1,
    ) -> Evaluation:
        """Run every task with ``policy`` (default: the trained one) and tell the trackers: once, or
        ``samples`` times, with ``pass@k`` among the metrics and an interval over tasks. An evaluation of the
        same version that the run made before it was resumed is not repeated.
        """
        batch = self.evaluations.next_batch(name)
        version = self.driver.version if self.driver else 0
        if (made := self.evaluations.still_valid(batch, version, chosen=policy is not None)) is not None:
            return made
        about = {"greedy": greedy, "evaluation": name}
        rollouts = self.rollouts(tasks, samples, name=batch, mode=mode, policy=policy, metadata=about)
        ids = [rollout.rollout_id for rollout in rollouts]
        self.plugins.ask("agl_progress", progress=Progress(what=f"evaluation {name}", rollouts=ids))
        work = evaluate(self.store, name, rollouts, self.evaluations.counting, self.records)
        evaluation, records = await self.guard(work)
        await self.keep_evaluation(batch, version, evaluation, records)
        return evaluation

    async def keep_evaluation(
        self, batch: str, version: int, evaluation: Evaluation, records: Sequence[Record]
    ) -> None:
        """Record an evaluation of policy ``version``: in the run's chain, in the store, and for trackers."""
        entry = {"version": version, "evaluation": evaluation.model_dump()}
        await self.journal.entry("evaluation", batch, entry, records)
        self.evaluations.made[batch] = entry
        await self.store.update_run(self.run_id, {"evaluations": self.evaluations.made, **self.guarded()})
        self.plugins.ask("agl_evaluated", evaluation=evaluation)

    async def records(self, rollout_ids: Sequence[str]) -> Sequence[Record]:
        """Return the records of whole groups of finished rollouts, with the rewards of their groups."""
        found: Sequence[Record] = await self.store.records(rollout_ids)
        for one in self.group_rewards:
            found = await one.grade(found)
        return found

    async def accounts(self) -> dict[str, dict[str, int]]:
        """Return counts of refusals, losses and failures by component, without those of rollouts."""
        await self.gateway.settle()
        gateway, before = self.gateway.metrics, self.losses.capture_before
        found = {
            "refused": (await self.store.counts()).get("refused", {}),
            "runner": {k: n for k, n in self.losses.attempts.items() if k not in set(AttemptStatus)},
            "capture": {k: n - before.get(k, 0) for k, n in COUNTS.snapshot().items()},
            "gateway": {
                "lost-records": gateway.lost_records,
                "uncounted-refusals": gateway.uncounted,
                **self.gateway.accounts(),
                # If no agent has a name, there are no agents to tell apart.
                "unnamed-calls": gateway.unnamed if gateway.unnamed < gateway.calls.total() else 0,
            },
            "over-length": dict(gateway.over_length),
            "moved": dict(gateway.failovers),
            "given-up": dict(gateway.aborted),
            "without-policy": dict(gateway.unrouted),
            "hooks": dict(self.plugins.errors),
            "trackers": dict(self.losses.trackers),
        }
        return {who: kept for who, n in found.items() if (kept := {k: v for k, v in n.items() if v})}

    async def guard(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``; if the runner or an engine dies meanwhile, cancel the work and raise what killed it
        instead of waiting forever, or of failing by what agents saw of it. Cancelled work has ended on
        return, so that its clean-up reaches an open store.
        """
        main, engines = asyncio.ensure_future(work), asyncio.ensure_future(self._watch_engines())
        watched = {engines} if self.runner is None else {engines, self.runner}
        try:
            await asyncio.wait({main, *watched}, return_when=asyncio.FIRST_COMPLETED)
            if not main.done():
                for one in watched:
                    if one.done():
                        one.result()  # raises what killed it
                raise RuntimeError("the runner stopped before the run was done")
            if not main.cancelled() and main.exception() is not None:
                self._check_engines()
            return main.result()
        finally:
            await _end(main, engines)

    async def _watch_engines(self) -> None:
        while True:
            self._check_engines()
            await asyncio.sleep(WATCH)

    def _check_engines(self) -> None:
        """Raise :class:`EngineDied` if an engine has ended by itself."""
        drivers: Mapping[str, object] = self.drivers
        for name, driver in drivers.items():
            if isinstance(driver, WatchedDriver) and (how := driver.engine_died()) is not None:
                raise EngineDied(f"the engine of policy {name!r} died: {how}")


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have ended, also if this is cancelled meanwhile."""
    pending, cancelled = set(tasks), False
    for one in pending:
        one.cancel()
    while pending:
        try:
            _, pending = await asyncio.wait(pending)
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
