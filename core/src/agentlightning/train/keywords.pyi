# Written by `make schema` from the sections of a run.
"""Keywords of ``Trainer``, for type checkers: the fields of a run, those of the suite's plugins included."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

class RunFields(TypedDict, total=False):
    runner: Any
    output: str | Path
    run: str | None
    resume: bool
    store: Any
    trackers: Any
    callbacks: Any
    note: str | None
    group_reward: Any
    log: str | Path | None
    budget: Any
    distill: Any
    metrics: Any
    select: Any
    policies: Mapping[str, Any] | None
    adapters: Any
    concurrency: int
    isolation: Literal["inline", "process"]
    timeout_seconds: float | None
    unresponsive_seconds: float | None
    max_attempts: int
    trusted: bool | None
    name: str
    steps: int
    batch_size: int
    seed: int
    recipe: Mapping[str, Any] | None
    settings: Mapping[str, Any] | None
    evaluate_every: int
    evaluate_sampled: bool
    failure: Any
    async_steps: int
    no_signal_steps: int
    keep_best: bool | str
    early_stopping: Any
    quorum: Any
    order: Literal["dataset", "finished"]
    dynamic_sampling: int
    curriculum: Any
    private: Any
    headroom: Mapping[str, Any] | None
    headroom_tasks: int
    sets: Mapping[str, Any] | None
    cluster: str | None
    driver: str
    policy: Any
    options: Mapping[str, Any] | None
    listen: str | None
    advertise: str | None
    max_requests: int
    attempt_bytes: int
    over_length: Literal["error", "drop", "truncate"]
    reserve: int
    max_len: int | None
    reasoning: Literal["keep", "split", "split-opened"]
    gateways: int
