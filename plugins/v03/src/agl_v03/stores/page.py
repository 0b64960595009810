"""Pages of query results, and the filters of v0.3's queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, overload

Item = TypeVar("Item")


class Page(Sequence[Item], Generic[Item]):
    """A part of a query's results: a sequence of its items. ``total``: the number of all results; ``limit``
    (-1: none) and ``offset``: as asked for.
    """

    def __init__(self, items: Sequence[Item], *, limit: int, offset: int, total: int) -> None:
        self.items, self.limit, self.offset, self.total = list(items), limit, offset, total

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __repr__(self) -> str:
        return f"Page({len(self.items)} of {self.total}, offset={self.offset})"


def page_of(
    items: Iterable[Item],
    filters: Mapping[str, tuple[str, Any]],
    *,
    logic: Literal["and", "or"] = "and",
    sort_by: str | None = None,
    sort_order: Literal["asc", "desc"] = "asc",
    limit: int = -1,
    offset: int = 0,
) -> Page[Item]:
    """Filter, sort and cut ``items``.

    ``filters``: keyword → (field, wanted). The keyword's end says how: ``…_in`` (one of), ``…_contains`` (a
    part of the text), else equal; ``None`` filters nothing. ``logic``: whether all filters must hold, or one.
    Raise ValueError for a field to sort by that the items do not have, or whose values have no order.
    """
    tests = [_test(how, field, wanted) for how, (field, wanted) in filters.items() if wanted is not None]
    combine = {"and": all, "or": any}.get(logic)
    if combine is None or sort_order not in ("asc", "desc"):
        raise ValueError(f"filter_logic is {logic!r} (and, or), sort_order is {sort_order!r} (asc, desc)")
    found = [item for item in items if not tests or combine(test(item) for test in tests)]
    if sort_by is not None and found:
        found = _sorted(found, sort_by, reverse=sort_order == "desc")
    end = None if limit < 0 else offset + limit
    return Page(found[offset:end], limit=limit, offset=offset, total=len(found))


def _test(how: str, field: str, wanted: Any) -> Callable[[Any], bool]:
    if how.endswith("_contains"):
        return lambda item: wanted in (getattr(item, field) or "")
    if how.endswith("_in"):
        chosen = set(wanted)
        return lambda item: getattr(item, field) in chosen
    return lambda item: getattr(item, field) == wanted


def _sorted(items: list[Item], sort_by: str, *, reverse: bool) -> list[Item]:
    if not hasattr(items[0], sort_by):
        raise ValueError(f"sort_by: {type(items[0]).__name__} has no field {sort_by!r}")
    known = [item for item in items if getattr(item, sort_by) is not None]
    unknown = [item for item in items if getattr(item, sort_by) is None]
    try:
        ordered = sorted(known, key=lambda item: getattr(item, sort_by), reverse=reverse)
    except TypeError:
        raise ValueError(f"sort_by: values of {sort_by!r} have no order") from None
    return unknown + ordered if reverse else ordered + unknown
