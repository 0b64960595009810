"""What a step of a planned run needs, as numbers: time, processes, memory, disk, network."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentlightning.plan.costs import Costs
from agentlightning.plan.engine import GB, EnginePlan, RolloutTimes, mean_context, plan_engines, rollout_times
from agentlightning.plan.inputs import Assumptions, PlannedRun
from agentlightning.plan.memory import CHECKPOINT, HALF, STATES, forward_flops, parameter_count, update_bytes

DAY = 86_400.0


@dataclass(frozen=True)
class StepNeeds:
    """Everything that a step needs. Seconds, bytes (or GB, MB by name), calls a second."""

    step_tokens: int
    context: float
    engines: EnginePlan
    times: RolloutTimes
    behind: float
    ship: float
    update: float
    sync: float
    step: float
    calls_mean: float
    calls_peak: float
    call_ms: float
    gateways: int
    store_writes: float
    trainer_gb: float
    host_gb: float
    cores: float
    disk_step_gb: float
    disk_day_gb: float
    checkpoint_gb: float
    shipped_mb: float
    weights_gb: float
    states_gb: float
    activations_gb: float
    cache_wanted: float

    @property
    def idle(self) -> float:
        """Share of a step in which GPUs wait: for Python, and for the longest rollouts."""
        return (self.behind + self.ship + self.times.tail) / self.step

    @property
    def waiting(self) -> float:
        """Share of a step in which GPUs wait for Python and its network."""
        return (self.behind + self.ship) / self.step


def needs(run: PlannedRun, given: Assumptions, costs: Costs, tokens_per_s: float | None = None) -> StepNeeds:
    """Compute what a step needs."""
    engines = plan_engines(run, given)
    times = rollout_times(run, given, engines, tokens_per_s)
    total, context = run.rollouts * run.tokens, mean_context(run)
    flops = run.rollouts * forward_flops(run.shape, run.tokens) * given.update_passes
    update = flops / (run.gpus * given.gpu_tflops * 1e12 * given.update_share)
    sync = engines.weights_bytes / (given.sync_gb_per_s * GB)
    behind = costs.step_behind_s.growing(total)
    shipped = costs.shipped_mb.growing(total)
    ship = shipped / 1e3 / given.network_gb_per_s
    step = times.phase + behind + ship + update + sync
    calls_mean = run.rollouts * run.turns / times.phase
    calls_peak = calls_mean * given.peak
    answer = given.answered * run.tokens / run.turns
    call_ms = costs.gateway_ms.at(context) + given.streamed * answer * costs.chunk_ms.at(answer)
    gateways = max(1, math.ceil(calls_peak * call_ms / 1e3 / given.cpu_share))
    trainer = costs.step_mb.at(total) / 1e3
    busy = costs.step_credit_s.growing(total) / step
    disk = total * costs.stored_bytes.at(run.tokens) / GB
    positions = max(run.micro_tokens, math.ceil(run.tokens / run.sequence_parallel))
    kept = update_bytes(run.shape, HALF, True, positions, math.ceil(given.answered * positions))
    asked = run.rollouts if run.concurrency is None else min(run.concurrency, run.rollouts)
    return StepNeeds(
        step_tokens=total,
        context=context,
        engines=engines,
        times=times,
        behind=behind,
        ship=ship,
        update=update,
        sync=sync,
        step=step,
        calls_mean=calls_mean,
        calls_peak=calls_peak,
        call_ms=call_ms,
        gateways=gateways,
        store_writes=calls_peak / costs.store_calls_per_s.at(context),
        trainer_gb=trainer,
        host_gb=trainer + gateways * costs.gateway_mb.at(context) / 1e3,
        cores=gateways + calls_peak / costs.store_calls_per_s.at(context) + max(1.0, busy),
        disk_step_gb=disk,
        disk_day_gb=disk * DAY / step,
        checkpoint_gb=CHECKPOINT * parameter_count(run.shape) / GB,
        shipped_mb=shipped,
        weights_gb=engines.replicas * engines.weights_bytes / GB,
        states_gb=STATES * parameter_count(run.shape) / run.gpus / GB,
        activations_gb=kept / GB,
        cache_wanted=asked / engines.replicas / engines.held,
    )
