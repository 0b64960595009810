"""Forecast time, disk and memory of the whole run from the probe, with every assumption stated."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from agl_testing.doctor.figures import format_bytes, format_seconds
from agl_testing.doctor.memory import MemoryUsage
from agl_testing.doctor.report import Check, Notes

LOGPROB_GAP = 1e-4
"""Largest difference between a stored logprob and the trainer's own that float32 explains."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The rollouts of a run."""

    steps: int
    rollouts: int
    """Rollouts per step."""
    held_out: int
    in_sets: int = field(default=0, kw_only=True)
    """Tasks of the named evaluation sets, together."""
    evaluate_every: int = 0
    evaluate_sampled: bool = True
    scripted: int = 0
    """Rollouts of scripted policies (oracle, random)."""
    async_steps: int = 0
    """Later steps whose rollouts run while one step is trained."""
    dynamic_sampling: int = 0
    """Extra batches that a step may roll out."""

    @property
    def evaluations(self) -> int:
        """Held-out rollouts: before and after training, greedy and, unless the run does without, sampled;
        and the scheduled evaluations.
        """
        between = max(0, (self.steps - 1) // self.evaluate_every) if self.evaluate_every else 0
        return ((4 if self.evaluate_sampled else 2) + between) * self.held_out + (2 + between) * self.in_sets


@dataclass(frozen=True, slots=True)
class ProbeMeasurements:
    """Measurements of the probe."""

    rollouts: int
    seconds: float
    """Wall time of all rollouts."""
    tokens: float
    """Tokens in the rows."""
    bytes: int
    start: float = 0.0
    update: float | None = None
    """Seconds of one update on these rows; ``None``: not measured."""
    sync: float = 0.0
    """Seconds until the engine served the new weights."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predicted cost of the run, in seconds and bytes."""

    step_seconds: float
    rollout_seconds: float
    """Seconds per step to collect rollouts."""
    update_seconds: float
    """Seconds per step for update and weight transfer."""
    evaluation_seconds: float
    total_seconds: float
    tokens: float
    """Tokens in a step's rows."""
    store_bytes_per_step: float
    store_bytes: float
    disk_bytes: float
    rollouts: int
    assumptions: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the forecast as a dictionary."""
        return asdict(self)


def predict(
    workload: Workload, seen: ProbeMeasurements, *, policy_bytes: int = 0, checkpoints: int = 0
) -> Forecast:
    """Scale measurements to the workload. Pure.

    ``policy_bytes`` is the size of a policy folder, ``checkpoints`` the number kept. Assumes that rollouts
    keep the probe's rate and that an update's cost is proportional to its tokens.
    """
    rate = seen.rollouts / seen.seconds
    share = workload.rollouts / seen.rollouts
    collecting = workload.rollouts / rate
    assumptions = [
        f"{rate:.1f} rollouts/s throughout, as in the probe: longer answers later will slow it down"
    ]
    if seen.update is None:
        update = collecting
        assumptions.append("no update was measured: it is taken to last as long as the rollouts")
    else:
        update = seen.update * share + seen.sync
        assumptions.append("an update costs in proportion to its tokens")
    if workload.async_steps:
        assumptions.append(
            "rollouts and updates are counted one after the other; with `async_steps` they overlap as far as "
            f"cores allow, so that a step takes {max(collecting, update):.1f} s at best"
        )
    if workload.dynamic_sampling:
        assumptions.append(
            f"no step is refilled; one that is rolls out up to {workload.dynamic_sampling + 1} times as much"
        )
    others = workload.evaluations + workload.scripted
    total = workload.steps * workload.rollouts + others
    store = seen.bytes / seen.rollouts * total
    disk = store + policy_bytes * (1 + 3 * checkpoints)
    if checkpoints:
        assumptions.append("a checkpoint takes three times the policy (weights and two moments of Adam)")
    return Forecast(
        step_seconds=collecting + update,
        rollout_seconds=collecting,
        update_seconds=update,
        evaluation_seconds=others / rate,
        total_seconds=seen.start + workload.steps * (collecting + update) + others / rate,
        tokens=seen.tokens * share,
        store_bytes_per_step=seen.bytes * share,
        store_bytes=store,
        disk_bytes=disk,
        rollouts=total,
        assumptions=assumptions,
    )


def judge_forecast(
    forecast: Forecast,
    *,
    steps: int,
    usage: list[MemoryUsage],
    free_disk: int,
    free_memory: int,
    gap: float | None,
) -> Check:
    """Judge whether the machine can carry the run. Pure.

    ``gap`` is the largest logprob difference in an update.
    """
    notes = Notes()
    f = forecast
    notes.fact(
        f"a step {format_seconds(f.step_seconds)}: rollouts {format_seconds(f.rollout_seconds)}, "
        f"update {format_seconds(f.update_seconds)}; {f.tokens:,.0f} tokens in rows"
    )
    notes.fact(f"evaluations {format_seconds(f.evaluation_seconds)}; {f.rollouts:,} rollouts in all")
    notes.fact(
        f"disk {format_bytes(f.disk_bytes)}: store {format_bytes(f.store_bytes)}, "
        f"{format_bytes(f.store_bytes_per_step)} a step"
        f" ({format_bytes(free_disk)} free)"
    )
    _memory(notes, usage, free_memory)
    if f.disk_bytes > free_disk:
        notes.fail(
            f"the run needs {format_bytes(f.disk_bytes)} of disk, {format_bytes(free_disk)} are free",
            "Free some, or set `output` elsewhere; options.save_every and keep decide on checkpoints.",
        )
    if gap is not None:
        notes.fact(f"largest gap between a stored logprob and the trainer's own: {gap:.1e}")
        if gap > LOGPROB_GAP:
            notes.warn(
                f"engine and trainer disagree on logprobs by up to {gap:.1e}",
                "Expected below float32 (options.dtype); else engine and trainer are not the same model.",
            )
    notes.detail += [f"assumed: {line}" for line in f.assumptions]
    title = f"{format_seconds(f.total_seconds)} for {steps} steps and the evaluations"
    return notes.check(
        "forecast", title, **f.as_dict(), logprob_gap_max=gap, memory=[u._asdict() for u in usage]
    )


def _memory(notes: Notes, usage: list[MemoryUsage], free: int) -> None:
    """Report resident memory and its growth since the first rollouts."""
    if not usage:
        notes.fact("memory in use: not measured")
        return
    now = usage[-1]
    began = usage[1] if len(usage) > 2 else usage[0]
    grown = now.trainer + now.children - began.trainer - began.children
    trend = f"{'+' if grown >= 0 else '−'}{format_bytes(abs(grown))} since {began.moment}"
    notes.fact(
        f"memory: trainer {format_bytes(now.trainer)}, "
        f"engine and other children {format_bytes(now.children)} ({trend})"
    )
    if free < 0.1 * (now.trainer + now.children):
        notes.warn(
            f"only {format_bytes(free)} of memory free beside "
            f"{format_bytes(now.trainer + now.children)} in use",
            "Lower options.micro_batch_tokens, options.max_num_seqs or agent.concurrency.",
        )
