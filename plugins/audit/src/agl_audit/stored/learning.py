"""Algorithms over stored rollouts: ``sft``, ``rejection`` and ``dpo``.

Each learns from what runs have left in their stores, with the loop, the checkpoints and the reports of any
training; rollouts are made for evaluations only.

``sft`` and ``rejection`` minimise the cross-entropy of the trained tokens of a step's rollouts:

    L = -1/T sum_i sum_t log pi(o_it)

``dpo`` (arXiv 2305.18290, equation 7) takes pairs of one group, y_w with the higher reward and y_l with the
lower:

    L = -1/P sum log sigmoid(beta m),   m = log pi(y_w)/pi_ref(y_w) - log pi(y_l)/pi_ref(y_l)

where log pi(y) sums over everything the policy wrote in the rollout, and pi_ref is the policy that the run
started from. Its gradient is that of ``-sum A log pi`` with ``A = +-beta sigmoid(-beta m) / P``, taken at the
present weights. So each step asks the driver for log-probabilities (``ScoringDriver``), and hands it rows
with these advantages.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import msgspec

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.crediting import StepCrediting
from agentlightning.algorithms.rl import RL, RLJob
from agentlightning.credit.accounts import row_metrics
from agentlightning.plugins.stores import open_store
from agentlightning.recipes import make
from agentlightning.specs import Driver
from agentlightning.store.base import Store
from agentlightning.store.pages import pages, record_pages
from agentlightning.types import Batch, Recipe, Record, RolloutFingerprint, Row
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import TrainingSection
from agl_audit.locations import find_run, match_name
from agl_audit.store.reward_versions import find_version, read_records
from agl_audit.stored.examples import Example, at_least, best_of, examples, pairs

METHODS = ("sft", "rejection", "dpo")


class ScoringDriver(Driver, Protocol):
    """A driver that tells how likely answers are under its present weights."""

    async def logprobs(self, rows: Sequence[Row]) -> list[float]:
        """The sum of the log-probabilities of each row's trained tokens. Nothing is trained."""


class StoredSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """``training.settings`` of these algorithms."""

    runs: list[str] = []
    """The runs to learn from: ids, folders of runs, store files or URLs."""
    minimum: float | None = None
    """``sft``: the least reward of a rollout; none: every rollout with a reward."""
    best: int = 1
    """``rejection``: how many rollouts of a group."""
    beta: float = 0.1
    """``dpo``: how strongly the policy is held to the one that it started from."""
    rewards: str | None = None
    """The version of the rewards (`agl rescore`); none: those that the rollouts ended with."""
    policy: str | None = None
    """The policy in the stored rollouts whose calls are learned; none: the name of the trained one."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("runs: name the runs to learn from, e.g. `agl train --from RUN`")
        if self.best < 1:
            raise ValueError(f"best = {self.best}: at least 1 rollout of a group")
        if not 0 < self.beta < math.inf:
            raise ValueError(f"beta = {self.beta}: must be finite, and above 0")


def stored_recipe(name: str, **overrides: Any) -> Recipe:
    """Return what a driver runs for the algorithm ``name``: the score function, with weights as they are."""
    return make(
        overrides,
        name=name,
        group_size=1,
        baseline="none",
        scale="none",
        loss="reinforce",
        loss_aggregation="token",
        off_policy_cap=None,
        correction=None,
    )


@dataclass(frozen=True, slots=True)
class StoredData:
    """What is learned from. An item is a rollout, or a pair of them."""

    items: Sequence[tuple[Example, ...]]
    read: int
    """Rollouts that were read."""
    left_out: Counter[str]
    digest: str
    """sha256 over the token ids and rewards of the items."""


class StoredLearning(RL):
    """Learns from stored rollouts. ``method``: ``sft``, ``rejection`` or ``dpo``."""

    def __init__(self, recipe: Recipe, training: TrainingSection, *, method: str) -> None:
        if training.async_steps:
            raise ConfigError(f"training.async_steps: {method!r} makes no rollouts to train on; drop it")
        try:
            self.settings = msgspec.convert(training.settings, StoredSettings)
        except (msgspec.ValidationError, ValueError) as error:
            raise ConfigError(f"training.settings of {method!r}: {error}") from None
        super().__init__(recipe, training)
        self.method = method

    async def make_job(self, context: Context) -> RLJob:
        """Read the stored rollouts and choose what is learned from."""
        if context.resources.named_policies:
            raise ConfigError(f"{self.method!r} trains one policy: give backend.policy one folder")
        if self.method == "dpo" and not hasattr(context.driver, "logprobs"):
            raise ConfigError(
                "'dpo' needs the log-probabilities of whole answers under the present weights, which this "
                "run's driver does not give; the driver local does"
            )
        data = await self._read(context)
        counted = ", ".join(f"{n} {reason}" for reason, n in sorted(data.left_out.items()))
        kind = "pairs" if self.method == "dpo" else "rollouts"
        said = f"{len(data.items)} {kind} of {data.read} rollouts; left out: {counted or 'none'}"
        context.say(f"{self.method}: {said}")
        if not data.items and self.training.steps:
            raise ConfigError(
                f"{self.method!r}: none of {data.read} rollouts of {', '.join(self.settings.runs)} can be "
                f"learned from ({counted or 'there are none'})"
            )
        return StoredJob(context, self, StoredSteps(context, self, data))

    async def _read(self, context: Context) -> StoredData:
        left_out: Counter[str] = Counter()
        policy = self.settings.policy or context.policy
        found: list[Example] = []
        read = 0
        for place in self.settings.runs:
            where = find_run(place)
            store = open_store(where.store, plugins=context.plugins, read_only=True)
            try:
                run_id, ids = await _rollouts(store, where.run, where.store)
                version = await find_version(store, run_id, self.settings.rewards)
                read += len(ids)
                for page in record_pages(ids):
                    records = await read_records(store, page, version, left_out)
                    found += await asyncio.to_thread(self._examples, records, policy, left_out)
            finally:
                await store.close()
        for one in found:
            for row in one.rows:
                row.policy = context.policy
        chosen = self._choose(found, left_out)
        return StoredData(chosen, read, Counter({k: n for k, n in left_out.items() if n}), _digest(chosen))

    def _examples(self, records: Sequence[Record], policy: str, left_out: Counter[str]) -> list[Example]:
        return list(examples(records, self.recipe, policy, left_out))

    def _choose(self, found: Sequence[Example], left_out: Counter[str]) -> list[tuple[Example, ...]]:
        if self.method == "dpo":
            return list(pairs(found, left_out))
        if self.method == "rejection":
            return [(one,) for one in best_of(found, self.settings.best, left_out)]
        return [(one,) for one in at_least(found, self.settings.minimum, left_out)]


async def _rollouts(store: Store, run: str | None, where: str) -> tuple[str, list[str]]:
    """A run's id, and those of its rollouts."""
    runs = [one["run_id"] async for page in pages(store.query_runs) for one in page]
    run_id = match_name(runs, run, where)
    found = pages(store.query_rollouts, run_id=run_id)
    return run_id, [one.rollout_id async for page in found for one in page]


def _digest(items: Sequence[tuple[Example, ...]]) -> str:
    found = hashlib.sha256()
    for item in items:
        for one in item:
            found.update(f"{one.rollout_id}\x1f{one.reward!r}".encode())
            for row in one.rows:
                found.update(msgspec.json.encode([list(row.token_ids), list(row.mask)]))
    return found.hexdigest()


@dataclass(slots=True)
class _Margins:
    """Of the pairs of a step: the loss, how many are ordered rightly, and the mean margin."""

    values: list[float] = field(default_factory=list)

    def metrics(self) -> dict[str, float]:
        n = len(self.values)
        return {
            "dpo/loss": sum(_softplus(-value) for value in self.values) / n,
            "dpo/accuracy": sum(value > 0 for value in self.values) / n,
            "dpo/margin": sum(self.values) / n,
        }


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    return 1.0 / (1.0 + math.exp(-x)) if x >= 0 else math.exp(x) / (1.0 + math.exp(x))


class StoredSteps:
    """The stored examples that a step learns (:class:`agentlightning.algorithms.schedule.Schedule`). Every
    item is used once before any is used again; the order is a function of seed and step.
    """

    def __init__(self, context: Context, learning: StoredLearning, data: StoredData) -> None:
        self.context, self.recipe, self.data = context, learning.recipe, data
        self.method, self.settings = learning.method, learning.settings
        self.training = learning.training
        self.reference: dict[str, float] = dict(context.progress.get("reference", {}))
        """Rollout id → log pi_ref of what the policy wrote in it."""
        self._items = _shuffled(data.items, self.training.batch_size, context.seed)
        for _ in range(context.first_step):
            next(self._items)

    def state(self) -> dict[str, Any]:
        return {"reference": self.reference} if self.reference else {}

    def summary(self, steps: int) -> dict[str, Any]:
        """What was learned from, for the run's summary."""
        seen = steps * self.training.batch_size
        return {
            "stored": {
                "runs": list(self.settings.runs),
                "rewards": self.settings.rewards,
                "rollouts": self.data.read,
                "items": len(self.data.items),
                "left_out": dict(sorted(self.data.left_out.items())),
                "epochs": round(seen / len(self.data.items), 3) if self.data.items else 0.0,
                "sha256": self.data.digest,
            }
        }

    async def end(self) -> int:
        return 0

    async def collect(self, step: int, credit: StepCrediting) -> Batch:
        """The rows of the step's items."""
        items = next(self._items)
        if self.method == "dpo":
            rows, more = await self._of_pairs(items)
        else:
            total = sum(one.tokens for (one,) in items)
            rows, more = [row for (one,) in items for row in one.weigh(1.0, 1.0 / total)], {}
        used = [one for item in items for one in item]
        metrics = {
            "rollouts": float(len(used)),
            "reward_mean": sum(one.reward for one in used) / len(used),
            **row_metrics(rows, self.recipe),
            **more,
        }
        return Batch(rows=rows, ledgers=[], metrics=metrics)

    async def _of_pairs(self, items: Sequence[tuple[Example, ...]]) -> tuple[list[Row], dict[str, float]]:
        """The rows of a step's pairs, with the advantages that make their gradient that of DPO's loss."""
        driver = cast(ScoringDriver, self.context.driver)
        if not self.reference:  # the first step: the weights are those that the run started from
            every = [one for item in self.data.items for one in item]
            self.reference = await _scores(driver, every)
        now = await _scores(driver, [one for item in items for one in item])
        margins, rows = _Margins(), []
        for better, worse in items:
            gains = [now[one.rollout_id] - self.reference[one.rollout_id] for one in (better, worse)]
            margin = self.settings.beta * (gains[0] - gains[1])
            margins.values.append(margin)
            pull = self.settings.beta * sigmoid(-margin)
            rows += [*better.weigh(pull, 1.0 / len(items)), *worse.weigh(-pull, 1.0 / len(items))]
        return rows, margins.metrics()


class StoredJob(RLJob):
    """A run over stored examples. No rollout is waited for, so that none can be without a signal."""

    async def _record_step(
        self, step: int, batch: Batch, fingerprints: Mapping[str, RolloutFingerprint]
    ) -> None:
        self.totals.collected(batch.metrics)
        self._fingerprints[self.policy] = []
        self.context.plugins.ask("agl_rows_built", step=step, batch=batch)


async def _scores(driver: ScoringDriver, found: Sequence[Example]) -> dict[str, float]:
    """Rollout id → log-probability of all that the policy wrote in it."""
    scores = iter(await driver.logprobs([row for one in found for row in one.rows]))
    return {one.rollout_id: math.fsum(next(scores) for _ in one.rows) for one in found}


def _shuffled(items: Sequence[Any], size: int, seed: int) -> Iterator[list[Any]]:
    """Yield batches without end, epoch after epoch, each in an order of its own. A batch holds no item twice:
    of fewer items than ``size`` it holds all.
    """
    pending: list[int] = []
    epoch = 0
    while True:
        batch: list[int] = []
        while len(batch) < min(size, len(items)):
            if not pending:
                pending = list(range(len(items)))
                random.Random(f"{seed}:{epoch}").shuffle(pending)
                epoch += 1
            at = next((i for i, item in enumerate(pending) if item not in batch), None)
            if at is None:  # what is left of the epoch is in this batch already
                pending += random.Random(f"{seed}:{epoch}").sample(range(len(items)), len(items))
                epoch += 1
                continue
            batch.append(pending.pop(at))
        yield [items[i] for i in batch]


__all__ = ["METHODS", "StoredJob", "StoredLearning", "StoredSettings", "stored_recipe"]
