"""Types and small helpers of v0.3 that need nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from threading import Event
from typing import Any, Literal, Protocol, Required, TypedDict, TypeVar, runtime_checkable

from agentlightning.types import Attempt, Resource, RolloutConfig, RolloutStatus, new_id

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)
NamedResources = dict[str, Resource]
"""Resources by name."""
TaskInput = Any
"""The input of a rollout, any JSON."""
AttributeValue = str | bool | int | float | list[str] | list[bool] | list[int] | list[float]
Attributes = dict[str, AttributeValue]
"""Attributes of a span."""
WorkerStatus = Literal["idle", "busy", "unknown"]
ThreadingEvent = ExecutionEvent = Event
"""What ends ``LitAgentRunner.iter(event=…)``."""


@runtime_checkable
class Dataset(Protocol[Item_co]):
    """Tasks by index: a list, a Hugging Face dataset, or an object of your own."""

    def __getitem__(self, index: int) -> Item_co: ...
    def __len__(self) -> int: ...


class EnqueueRolloutRequest(TypedDict, total=False):
    """One rollout of ``enqueue_many_rollouts``."""

    input: Required[Any]
    mode: Literal["train", "val", "test"] | None
    resources_id: str | None
    config: RolloutConfig | None
    metadata: dict[str, Any] | None


def batch_iter_over_dataset(dataset: Dataset[Item], batch_size: int) -> Iterator[Sequence[Item]]:
    """Yield batches for ever, each pass over the dataset in a new random order. A dataset that is no larger
    than a batch is yielded whole, in its order.
    """
    size = len(dataset)
    if batch_size < 1 or size < 1:
        raise ValueError(f"batch_size is {batch_size} and the dataset has {size} items: both must be above 0")
    order: list[int] = []
    while True:
        if size <= batch_size:
            yield [dataset[index] for index in range(size)]
            continue
        while len(order) < batch_size:
            order += random.sample(range(size), size)
        chosen, order = order[:batch_size], order[batch_size:]
        yield [dataset[index] for index in chosen]


def generate_id(length: int) -> str:
    """Return ``length`` random hexadecimal digits."""
    digits = ""
    while len(digits) < length:
        digits += new_id("").removeprefix("-")
    return digits[:length]


async def rollout_status_from_attempt(attempt: Attempt, config: RolloutConfig) -> RolloutStatus:
    """Return the status of a rollout whose latest attempt is ``attempt``: an end that ``config`` retries
    leads to ``requeuing``.
    """
    status = str(attempt.status)
    if status in ("preparing", "running", "succeeded"):
        return RolloutStatus(status)
    again = attempt.status in config.retry_condition and attempt.sequence_id < config.max_attempts
    return RolloutStatus.REQUEUING if again else RolloutStatus.FAILED
