"""What a plan is asked for: the run, the machines, and the assumptions that nobody measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

from agentlightning.plan.shape import NetworkShape
from agentlightning.types.base import ConfigError


@dataclass(frozen=True)
class PlannedRun:
    """A run whose every rollout is one conversation that grows with each call.

    ``tokens``: of a conversation at its end; ``rollouts``: of a step; ``concurrency``: rollouts under way at
    once, ``None``: all of a step; ``engine_gpus``: GPUs of one engine replica, ``None``: the fewest whose
    weights leave half of their memory to the cache; ``sequence_parallel``: GPUs that share the
    tokens of a row in the update.
    """

    gpus: int
    model: str
    shape: NetworkShape
    turns: int
    tokens: int
    rollouts: int = 2048
    group: int = 8
    concurrency: int | None = None
    engine_gpus: int | None = None
    micro_tokens: int = 16_384
    sequence_parallel: int = 1

    def __post_init__(self) -> None:
        for name in ("gpus", "turns", "tokens", "rollouts", "group", "micro_tokens", "sequence_parallel"):
            _at_least_one(name, getattr(self, name))
        for name in ("concurrency", "engine_gpus"):
            if getattr(self, name) is not None:
                _at_least_one(name, getattr(self, name))
        if self.tokens < 2 * self.turns:
            raise ConfigError(
                f"--tokens {self.tokens}: a conversation of {self.turns} calls has at least {2 * self.turns} "
                "tokens; --tokens is the length of the whole conversation at its end"
            )
        if self.rollouts % self.group:
            raise ConfigError(
                f"--rollouts {self.rollouts} is no multiple of --group {self.group}: a step has whole groups"
            )
        if self.engine_gpus is not None and self.gpus % self.engine_gpus:
            raise ConfigError(f"--engine-gpus {self.engine_gpus} does not divide --gpus {self.gpus}")


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"--{name.replace('_', '-')} {value}: at least 1 is needed")


def _number(default: float, unit: str, about: str, most: float | None = None) -> float:
    made: float = field(default=default, metadata={"unit": unit, "about": about, "most": most})
    return made


@dataclass(frozen=True)
class Assumptions:
    """What nobody measured for this run: data sheets, habits, guesses. ``agl plan --assume`` edits it."""

    gpu_memory_gb: float = _number(80, "GB", "memory of a GPU (data sheet of an H100 SXM)")
    gpu_tflops: float = _number(989, "TFLOP/s", "bfloat16 arithmetic of a GPU at its peak (data sheet)")
    gpu_gb_per_s: float = _number(3350, "GB/s", "memory bandwidth of a GPU (data sheet)")
    decode_share: float = _number(0.5, "", "share of the bandwidth that decoding reaches", 1)
    prefill_share: float = _number(0.4, "", "share of the arithmetic that prefill reaches", 1)
    update_share: float = _number(0.35, "", "share of the arithmetic that the update reaches", 1)
    update_passes: float = _number(
        5,
        "forward passes",
        "arithmetic of an update: forward, again for old logprobs, recomputed, backward (2)",
    )
    engine_memory: float = _number(0.5, "", "share of a GPU's memory that an engine takes", 1)
    answered: float = _number(0.25, "", "share of a conversation's tokens that the policy writes", 1)
    tool_seconds: float = _number(1, "s", "an agent's own work between two calls")
    longest: float = _number(1.5, "×", "a step's longest rollout, in mean rollouts")
    peak: float = _number(2, "×", "calls in the busiest second, in mean seconds")
    streamed: float = _number(0, "", "share of calls whose answers are streamed", 1)
    cpu_share: float = _number(
        0.6, "", "share of a core that a gateway, and of its rate that a store, is planned for", 1
    )
    sync_gb_per_s: float = _number(25, "GB/s", "new weights into one engine replica")
    network_gb_per_s: float = _number(1.25, "GB/s", "network of the trainer's host")
    host_cores: float = _number(32, "cores", "of the host of trainer, store and gateways")
    host_memory_gb: float = _number(256, "GB", "memory of that host")
    disk_gb: float = _number(4000, "GB", "disk of that host")
    days: float = _number(7, "days", "that the disk has to last")
    waiting: float = _number(0.05, "", "share of a step that GPUs may wait for Python", 1)

    def __post_init__(self) -> None:
        for one in fields(self):
            value, most = getattr(self, one.name), one.metadata["most"]
            least_is_zero = one.name in ("tool_seconds", "streamed")
            if value < 0 or (value == 0 and not least_is_zero) or (most is not None and value > most):
                low = "0" if least_is_zero else "more than 0"
                limit = low if most is None else f"{low}, at most {most:g}"
                raise ConfigError(f"--assume {one.name}={value:g}: {limit} is needed")
        if self.longest < 1 or self.peak < 1:
            name = "longest" if self.longest < 1 else "peak"
            raise ConfigError(
                f"--assume {name}={getattr(self, name):g}: at least 1, in multiples of the mean"
            )


def assume(pairs: Sequence[str]) -> Assumptions:
    """Return the assumptions with ``name=value`` edits. Raises :class:`ConfigError` for an unknown name."""
    known = {one.name for one in fields(Assumptions)}
    edits: dict[str, float] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in known:
            raise ConfigError(
                f"--assume {pair!r}: no assumption {name!r}; there are {', '.join(sorted(known))}"
            )
        try:
            edits[name] = float(text)
        except ValueError:
            edits[name] = math.nan
        if not math.isfinite(edits[name]):
            raise ConfigError(f"--assume {pair!r}: give {name}=NUMBER")
    return replace(Assumptions(), **edits)


def count(text: str, option: str) -> int:
    """Return a number such as ``16k``, ``1.5m`` or ``16384``; k is 1,000, m a million."""
    plain = text.strip().lower().replace(",", "").replace("_", "")
    factor = {"k": 1_000, "m": 1_000_000}.get(plain[-1:], 1)
    try:
        value = float(plain.rstrip("km")) * factor
    except ValueError:
        value = 0.0
    if not 1 <= value < 1e15 or value != int(value):
        raise ConfigError(f"{option} {text!r}: give a whole number of at least 1, such as 16384 or 16k")
    return int(value)
