"""Engine replicas by formula: the GPUs of one, what its cache holds, how long a rollout takes in it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentlightning.plan.inputs import Assumptions, PlannedRun
from agentlightning.plan.memory import HALF, cached_numbers, forward_flops, parameter_count
from agentlightning.types.base import ConfigError

GB = 1e9


def mean_context(run: PlannedRun) -> float:
    """Return the mean tokens of a call, prompt and answer: calls grow evenly to the whole conversation."""
    return run.tokens * (run.turns + 1) / (2 * run.turns)


@dataclass(frozen=True)
class EnginePlan:
    """One engine replica has ``gpus``, and ``cache_bytes`` for keys and values, which ``held`` conversations
    of mean length fill.
    """

    gpus: int
    replicas: int
    weights_bytes: float
    cache_bytes: float
    held: float


def plan_engines(run: PlannedRun, given: Assumptions) -> EnginePlan:
    """Choose the fewest GPUs of a replica whose weights leave half of its memory, or more, to the cache; if
    there are not so many, all of them. Raises :class:`ConfigError` where the cache holds no whole
    conversation.
    """
    weights = HALF * parameter_count(run.shape)
    token = HALF * cached_numbers(run.shape)
    each = given.engine_memory * given.gpu_memory_gb * GB
    divisors = [n for n in range(1, run.gpus + 1) if run.gpus % n == 0 and n * each >= 2 * weights]
    gpus = run.engine_gpus or next(iter(divisors), run.gpus)
    cache = gpus * each - weights
    if cache < token * run.tokens:
        raise ConfigError(
            f"an engine of {run.model} needs {(weights + token * run.tokens) / GB:,.0f} GB for its weights "
            f"and one conversation of {run.tokens:,} tokens, and {gpus} GPU{'s' * (gpus > 1)} give it "
            f"{gpus * each / GB:,.0f} GB ({given.engine_memory:g} of {given.gpu_memory_gb:g} GB each): more "
            "GPUs, a smaller model, shorter conversations, or a larger --assume engine_memory=SHARE"
        )
    return EnginePlan(gpus, run.gpus // gpus, weights, cache, cache / (token * mean_context(run)))


@dataclass(frozen=True)
class RolloutTimes:
    """Seconds. ``mean``: of a rollout, its agent's work included; ``phase``: until the last one has ended;
    ``tail``: the part of it in which only the longest are left. ``under_way``: rollouts at a time in all.
    """

    mean: float
    phase: float
    tail: float
    under_way: float
    tokens_per_s_per_gpu: float


def rollout_times(
    run: PlannedRun, given: Assumptions, engines: EnginePlan, tokens_per_s: float | None
) -> RolloutTimes:
    """Return how long rollouts take. ``tokens_per_s``: generated a second by each GPU, prefill
    included, where it is known.

    A decoding step of a replica reads the weights W and the cache of the b conversations in it, of κ bytes a
    token and c tokens each: (W + b·c·κ) / (bandwidth). An answer token takes a step; b prefills share the
    replica. So a rollout's seconds in the engine are x = α + β·b, and with n rollouts at a replica, of which
    each works T seconds outside it, b = n·x / (x + T): x² + (T − α − β·n)·x − α·T = 0.
    """
    asked = run.rollouts if run.concurrency is None else min(run.concurrency, run.rollouts)
    places = min(asked / engines.replicas, engines.held)
    answered = given.answered * run.tokens
    prefill = (1 - given.answered) * forward_flops(run.shape, run.tokens)
    prefill /= engines.gpus * given.gpu_tflops * 1e12 * given.prefill_share
    if tokens_per_s is None:
        bandwidth = engines.gpus * given.gpu_gb_per_s * GB * given.decode_share
        alone = answered * engines.weights_bytes / bandwidth
        shared = answered * HALF * cached_numbers(run.shape) * mean_context(run) / bandwidth + prefill
    else:
        alone, shared = 0.0, answered / (tokens_per_s * engines.gpus)
    outside = (run.turns - 1) * given.tool_seconds
    inside = _in_engine(alone, shared, places, outside)
    mean = inside + outside
    under_way = places * engines.replicas
    full = mean * max(1.0, run.rollouts / under_way)
    tail = (given.longest - 1) * mean
    generated = run.rollouts * answered
    return RolloutTimes(mean, full + tail, tail, under_way, generated / (full + tail) / run.gpus)


def _in_engine(alone: float, shared: float, places: float, outside: float) -> float:
    """Return the positive root x; at least what a rollout takes that is alone in its replica."""
    half = (outside - alone - shared * places) / 2
    root = -half + math.sqrt(half**2 + alone * outside)
    return max(root, alone + shared * min(1.0, places))
