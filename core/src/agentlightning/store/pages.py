"""Long lists page by page: every query takes ``limit`` and ``after``, the cursor of the last item.

Invariant: a cursor names an item by ids that never change, so rows that arrive between two pages neither
repeat nor hide an item.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from agentlightning.store.bounds import check_count

T = TypeVar("T")
SortBy = Literal["sequence_id", "start_time", "end_time", "name"]
SortOrder = Literal["asc", "desc"]

CURSORS: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {
        "query_rollouts": lambda rollout: rollout.rollout_id,
        "query_attempts": lambda attempt: attempt.attempt_id,
        "query_spans": lambda span: f"{span.attempt_id}/{span.sequence_id}",
        "query_calls": lambda call: call.call_id,
        "query_resources": lambda resources: resources.resources_id,
        "query_runs": lambda run: run["run_id"],
        "query_steps": lambda report: f"{report.step}/{report.policy}",
        "query_fingerprints": lambda one: f"{one.step}/{one.policy}/{one.rollout_id}",
        "query_links": lambda link: str(link.number),
        "query_workers": lambda worker: worker.worker_id,
    }
)
"""Query → the cursor of one of its items."""


RECORD_PAGE = 16
"""Records that are read at once: a few hundred bytes to some megabytes each."""


def record_pages(rollout_ids: Sequence[str]) -> Iterator[list[str]]:
    """The ids of records to read, page by page."""
    for start in range(0, len(rollout_ids), RECORD_PAGE):
        yield list(rollout_ids[start : start + RECORD_PAGE])


async def pages(
    method: Callable[..., Awaitable[list[T]]], *args: Any, size: int = 500, **filters: Any
) -> AsyncIterator[list[T]]:
    """Yield the pages of a query of any store, ``size`` items each but the last; none for an empty list.

    ``async for page in pages(store.query_rollouts, run_id="r"): …``
    """
    name = getattr(method, "__name__", repr(method))
    if name not in CURSORS:
        raise ValueError(f"{name} has no pages; one of {', '.join(CURSORS)}")
    check_limit(size, "size")
    cursor = CURSORS[name]
    after: str | None = None
    while True:
        page = await method(*args, limit=size, after=after, **filters)
        if page:
            yield page
        if len(page) < size:
            return
        after = cursor(page[-1])


def check_limit(limit: int | None, name: str = "limit") -> None:
    """``ValueError`` for a limit below 1: to SQLite a negative one means "all"."""
    check_count(name, limit, 1)


def check_order(sort_order: str) -> None:
    """``ValueError`` for an order other than ``asc`` and ``desc``."""
    if sort_order not in ("asc", "desc"):
        raise ValueError(f"sort_order must be asc or desc, not {sort_order!r}")
