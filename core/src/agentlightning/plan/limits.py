"""What a run can have too little of, and what to change."""

from __future__ import annotations

import math

from agentlightning.plan.costs import Costs
from agentlightning.plan.figures import PlanLimit
from agentlightning.plan.inputs import Assumptions, PlannedRun
from agentlightning.plan.needs import StepNeeds


def limits(run: PlannedRun, given: Assumptions, costs: Costs, found: StepNeeds) -> list[PlanLimit]:
    """Return all limits, the tightest first."""
    all_of_them = [*_of_gpus(run, given, found), *_of_host(given, costs, found), _of_python(given, found)]
    return sorted(all_of_them, key=lambda limit: -limit.used)


def _of_gpus(run: PlannedRun, given: Assumptions, found: StepNeeds) -> list[PlanLimit]:
    asked = run.rollouts if run.concurrency is None else min(run.concurrency, run.rollouts)
    fits = math.floor(found.engines.held * found.engines.replicas)
    update = found.states_gb + found.activations_gb
    return [
        PlanLimit(
            "KV cache",
            found.cache_wanted,
            f"{asked:,} rollouts at a time",
            f"{fits:,} of mean length fit",
            f"run at most {fits:,} at a time (agent.concurrency), or raise engine_memory, add GPUs, shorten "
            "conversations; what does not fit waits its turn in the engine",
        ),
        PlanLimit(
            "GPU memory of the update",
            update / given.gpu_memory_gb,
            f"{update:,.1f} GB",
            f"{given.gpu_memory_gb:,.0f} GB a GPU, engines asleep",
            "divide rows over ranks (sequence_parallel), add GPUs, train LoRA, or lower micro_batch_tokens "
            "where rows are shorter",
        ),
    ]


def _of_host(given: Assumptions, costs: Costs, found: StepNeeds) -> list[PlanLimit]:
    rate = costs.store_calls_per_s.at(found.context)
    days = given.disk_gb / found.disk_day_gb
    return [
        PlanLimit(
            "store writes",
            found.store_writes / given.cpu_share,
            f"{found.calls_peak:,.0f} a second",
            f"{given.cpu_share:g} of {rate:,.0f} a second",
            "give runs stores of their own, or slow the busiest second (smaller agent.concurrency)",
        ),
        PlanLimit(
            "cores of the host",
            found.cores / given.host_cores,
            f"{found.cores:,.1f} cores, {found.gateways} of them gateways",
            f"{given.host_cores:g} cores",
            "run gateways on other hosts; leave streaming to agents that need it",
        ),
        PlanLimit(
            "memory of the host",
            found.host_gb / given.host_memory_gb,
            f"{found.host_gb:,.1f} GB",
            f"{given.host_memory_gb:,.0f} GB",
            "fewer rollouts a step, or a host with more memory",
        ),
        PlanLimit(
            "disk",
            given.days / days,
            f"{found.disk_day_gb:,.0f} GB a day for {given.days:g} days",
            f"{given.disk_gb:,.0f} GB, full in {days:,.1f} days",
            "prune calls of finished steps (the store's retention), or give the store a larger disk",
        ),
    ]


def _of_python(given: Assumptions, found: StepNeeds) -> PlanLimit:
    return PlanLimit(
        "GPUs wait for Python",
        found.waiting / given.waiting,
        f"{found.behind + found.ship:,.1f} s of a step of {found.step:,.0f} s",
        f"{given.waiting:.0%} of a step",
        "roll out ahead of training (async_steps: 1), or fewer tokens a step",
    )
