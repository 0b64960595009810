"""Long lists page by page: every query takes ``limit`` and ``after``, the cursor of the last item.

Invariant: a cursor names an item by ids that never change, so rows that arrive between two pages neither
repeat nor hide an item.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from agentlightning import types
from agentlightning.store.bounds import check_count

T = TypeVar("T")
SortOrder = Literal["asc", "desc"]

_CURSORS: Mapping[type, str] = MappingProxyType(
    {
        types.Rollout: "{0.rollout_id}",
        types.Attempt: "{0.attempt_id}",
        types.Span: "{0.attempt_id}/{0.sequence_id}",
        types.Call: "{0.call_id}",
        types.Resources: "{0.resources_id}",
        types.StepReport: "{0.step}/{0.policy}",
        types.RolloutFingerprint: "{0.step}/{0.policy}/{0.rollout_id}",
        types.AuditLink: "{0.number}",
        types.Worker: "{0.worker_id}",
        dict: "{0[run_id]}",  # a run
    }
)
"""Kind of item → the cursor of one."""


def cursor_of(item: Any) -> str:
    """The cursor of an item of a query. ``TypeError``: lists of such items have no pages."""
    for kind, form in _CURSORS.items():
        if isinstance(item, kind):
            return form.format(item)
    raise TypeError(f"a list of {type(item).__name__} has no pages")


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
    check_limit(size, "size")
    after: str | None = None
    while True:
        page = await method(*args, limit=size, after=after, **filters)
        if page:
            yield page
        if len(page) < size:
            return
        after = cursor_of(page[-1])


def check_limit(limit: int | None, name: str = "limit") -> None:
    """``ValueError`` for a limit below 1: to SQLite a negative one means "all"."""
    check_count(name, limit, 1)


def check_order(sort_order: str) -> None:
    """``ValueError`` for an order other than ``asc`` and ``desc``."""
    if sort_order not in ("asc", "desc"):
        raise ValueError(f"sort_order must be asc or desc, not {sort_order!r}")
