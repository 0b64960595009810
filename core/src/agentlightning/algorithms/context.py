"""The open run that an algorithm works with: store, gateway, plugins and data."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from agentlightning.algorithms.evaluation.evaluate import Counting, evaluate
from agentlightning.algorithms.journal import Journal
from agentlightning.algorithms.multi_policy import MultiPolicyDriver
from agentlightning.algorithms.rollouts.batching import group_rollouts
from agentlightning.capture import COUNTS
from agentlightning.credit.eligibility import Versions
from agentlightning.gateway.base import RunGateway
from agentlightning.keys import CONTEXT_KEY
from agentlightning.plugins.manager import Plugins
from agentlightning.specs import CallGuard, Driver, WatchedDriver
from agentlightning.store.base import Store
from agentlightning.types import (
    LLM,
    AttemptStatus,
    Evaluation,
    Mode,
    Progress,
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
    """A loop over tasks; its result goes into the run's summary."""

    async def run(self, context: Context) -> dict[str, Any]: ...


@dataclass(slots=True)
class Context:
    """One run. The trainer makes it, starts what it holds, and closes it."""

    run_id: str
    folder: Path
    store: Store
    gateway: RunGateway
    plugins: Plugins
    seed: int
    guards: Sequence[CallGuard] = ()
    """What admits and counts the run's calls, such as a budget."""
    train: Dataset = ()
    val: Dataset = ()
    sets: dict[str, Dataset] = field(default_factory=dict)
    """Named evaluation sets."""
    policy: str = "policy"
    """Model name under which agents ask for their policy."""
    named: tuple[str, ...] = ()
    """Policies that agents may ask for by name, in a run with named policies."""
    driver: Driver | MultiPolicyDriver | None = None
    headroom: dict[str, Callable[..., Any]] = field(default_factory=dict)
    """Scripted policies (``oracle``, ``random``) that bound the headroom."""
    config: RolloutConfig = field(default_factory=RolloutConfig)
    """Attempts, timeouts and retries of rollouts."""
    counting: Counting = field(default_factory=Counting)
    """How evaluations count failures and clusters."""
    first_step: int = 0
    """Steps that the run had finished when it was resumed."""
    progress: dict[str, Any] = field(default_factory=dict)
    """The algorithm's state in the checkpoint of ``first_step``."""
    known: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Batch → a finished evaluation and the policy version that was evaluated."""
    journal: Journal = field(init=False)
    """Writes the run's chain."""
    runner: asyncio.Task[None] | None = None
    """The background runner; if it dies, the run must not wait for its rollouts."""
    ended: Counter[str] = field(default_factory=Counter)
    """Ends of the runner's attempts, counted."""
    counted: dict[str, int] = field(default_factory=COUNTS.snapshot)
    """Capture's counts in this process before the run."""
    say: Callable[[str], None] = print
    """Prints a line at the terminal."""
    evaluated: Counter[str] = field(default_factory=Counter)
    """Evaluation name → number of evaluations of that name; each has new rollouts."""
    resources: dict[str, str] = field(default_factory=dict)
    """Policy name → id of the resources that point agents at it."""

    initial_resources: dict[str, Resource | str | dict[str, Any]] = field(default_factory=dict)
    """Resources that agents get besides the policy."""
    serve_policy: bool = True
    """Whether agents get the policy as ``llm``; false if a user's algorithm trains no policy."""
    tracker_errors: Counter[str] = field(default_factory=Counter)
    """Tracker → errors raised in it."""

    def __post_init__(self) -> None:
        self.journal = Journal(self.store, self.run_id, self.folder)

    @property
    def versions(self) -> Versions:
        """Return the policy version about to be trained; of named policies, the version of each."""
        if isinstance(self.driver, MultiPolicyDriver):
            return self.driver.versions
        return self.driver.version if self.driver else None

    @property
    def trained(self) -> tuple[str, ...]:
        """Return the names of the trained policies."""
        return tuple(self.driver.drivers) if isinstance(self.driver, MultiPolicyDriver) else (self.policy,)

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

    async def publish(self) -> None:
        """Store the resources of agents: endpoints of the policy and of the scripted policies. The gateways
        serve them by then.
        """
        await self.gateway.settle()
        first, *others = self.gateway.urls
        for name in (self.policy, *self.headroom):
            bundle = dict(self.initial_resources)
            if self.serve_policy or name != self.policy:
                for key, model in (("llm", name), *zip(self.named, self.named, strict=True)):
                    vocabulary, context = self.gateway.limits(model)
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
            if name in self.resources:  # the gateway of the run's earlier life is gone
                await self.store.update_resources(self.resources[name], bundle)
            else:
                self.resources[name] = (await self.store.add_resources(bundle)).resources_id

    def rollouts(
        self, tasks: Dataset, samples: int, *, name: str, mode: Mode, policy: str | None = None, **fields: Any
    ) -> list[Rollout]:
        """Return ``samples`` rollouts of each task for batch ``name``, with ``policy`` (default: the trained
        one) and the run's settings; ``fields`` go to :func:`group_rollouts`.
        """
        if policy in self.headroom:  # a key opens no scripted policy but in its own evaluation
            fields["metadata"] = {**(fields.get("metadata") or {}), "policies": {"re:.*": policy}}
        fields = {
            "seed": self.seed,
            "config": self.config,
            "resources_id": self.resources[policy] if policy else self.resources.get(self.policy),
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
        self.evaluated[name] += 1
        batch = f"eval/{name}/{self.evaluated[name]}"
        version = self.driver.version if self.driver else 0
        if (known := self.known.get(batch)) and _still_valid(known, name, policy, version):
            return msgspec.convert(known["evaluation"], Evaluation)
        about = {"greedy": greedy, "evaluation": name}
        rollouts = self.rollouts(tasks, samples, name=batch, mode=mode, policy=policy, metadata=about)
        ids = [rollout.rollout_id for rollout in rollouts]
        self.plugins.notify("agl_progress", progress=Progress(what=f"evaluation {name}", rollouts=ids))
        evaluation, records = await self.guard(evaluate(self.store, name, rollouts, self.counting))
        entry = {"version": version, "evaluation": evaluation.model_dump()}
        await self.journal.evaluation(batch, entry, records)
        self.known[batch] = entry
        await self.store.update_run(self.run_id, {"evaluations": self.known, **self.guarded()})
        self.plugins.notify("agl_evaluated", evaluation=evaluation)
        return evaluation

    async def accounts(self) -> dict[str, dict[str, int]]:
        """Return counts of refusals, losses and failures by component, without those of rollouts."""
        await self.gateway.settle()
        gateway = self.gateway.metrics
        found = {
            "refused": (await self.store.counts()).get("refused", {}),
            "runner": {k: n for k, n in self.ended.items() if k not in set(AttemptStatus)},
            "capture": {k: n - self.counted.get(k, 0) for k, n in COUNTS.snapshot().items()},
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
            "trackers": dict(self.tracker_errors),
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
        found: dict[str, object] = {self.policy: self.driver}
        if isinstance(self.driver, MultiPolicyDriver):
            found = {**self.driver.drivers}
        for name, driver in found.items():
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


def _still_valid(known: dict[str, Any], name: str, policy: str | None, version: int) -> bool:
    """Whether an evaluation from before the resume still holds for the served version."""
    return known["version"] == version or policy is not None or name.startswith("before")
