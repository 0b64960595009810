"""What a list of rollouts is asked for: filters, order and page, read from an address and written as SQL.

Invariant: a value of an address reaches SQL only as a parameter; columns and directions are a fixed set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from agentlightning.types import UsageError
from agl_audit.rollout_list import reward_condition

ORDERS: Final = {
    "arrival": "seq",
    "reward": "reward",
    "calls": "calls",
    "tokens": "tokens",
    "seconds": "seconds",
    "attempts": "attempts",
    "task": "task",
    "status": "status",
}
"""Name in an address → column."""
SIZES: Final = (25, 50, 100, 200)
_FIELDS: Final = ("status", "mode", "batch", "task", "group", "reward", "q")
_LONGEST: Final = 500
"""Characters of a filter."""


class BadQuery(UsageError, ValueError):
    """A filter, order or page that is none."""


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Filters (empty: all), order and page of a list of rollouts."""

    run: str
    status: str = ""
    mode: str = ""
    batch: str = ""
    task: str = ""
    group: str = ""
    reward: str = ""
    """``<0.5``, ``>=1``, ``0``, ``none``."""
    q: str = ""
    """Text that the line must contain, upper or lower case."""
    sort: str = "arrival"
    descending: bool = False
    page: int = 1
    size: int = 50

    @classmethod
    def read(cls, run: str, given: Mapping[str, str]) -> RolloutQuery:
        """Read a query from an address. Raise :class:`BadQuery` or ``BadFilter``."""
        filters = {name: given.get(name, "").strip()[:_LONGEST] for name in _FIELDS}
        if filters["reward"]:
            reward_condition(filters["reward"])
        sort = given.get("sort", "arrival")
        descending = sort.startswith("-")
        sort = sort.removeprefix("-")
        if sort not in ORDERS:
            raise BadQuery(f"rollouts cannot be sorted by {sort[:40]!r}; by {', '.join(ORDERS)}")
        size = _count(given.get("size", "50"), "size")
        if size not in SIZES:
            raise BadQuery(f"a page has {', '.join(map(str, SIZES))} lines, not {size}")
        page = _count(given.get("page", "1"), "page")
        return cls(run, **filters, sort=sort, descending=descending, page=page, size=size)

    def where(self) -> tuple[str, list[Any]]:
        """Return the SQL condition and its parameters."""
        parts: list[str] = ["run = ?"]
        values: list[Any] = [self.run]
        columns = {"status": "status", "mode": "mode", "batch": "batch", "task": "task", "group": "group_id"}
        for name, column in columns.items():
            if wanted := getattr(self, name):
                parts.append(f"{column} = ?")
                values.append(wanted)
        if self.reward:
            operator, bound = reward_condition(self.reward)
            if bound is None:
                parts.append("reward IS NULL")
            else:
                parts.append(f"reward {operator} ?")
                values.append(bound)
        if self.q:
            parts.append("instr(search, ?) > 0")
            values.append(self.q.lower())
        return f" WHERE {' AND '.join(parts)}", values

    def order(self) -> str:
        """Return the SQL order: lines without a value come last, ties in order of arrival."""
        column, direction = ORDERS[self.sort], "DESC" if self.descending else "ASC"
        if column == "seq":
            return f"seq {direction}"
        return f"{column} {direction} NULLS LAST, seq {direction}"

    def link(self, **changes: Any) -> str:
        """Return the query of an address with some values changed; another filter begins at page 1."""
        if "page" not in changes:
            changes["page"] = 1
        new = replace(self, **changes)
        said: dict[str, str] = {name: getattr(new, name) for name in _FIELDS if getattr(new, name)}
        if new.sort != "arrival" or new.descending:
            said["sort"] = f"{'-' if new.descending else ''}{new.sort}"
        if new.size != 50:
            said["size"] = str(new.size)
        if new.page != 1:
            said["page"] = str(new.page)
        return "?" + urlencode(said)

    def sort_link(self, name: str) -> str:
        """Return the link of a column's heading: sort by it, or the other way round."""
        if self.sort == name:
            return self.link(descending=not self.descending)
        return self.link(sort=name, descending=name not in ("arrival", "task", "status"))

    @property
    def filtered(self) -> bool:
        """Whether any filter is set."""
        return any(getattr(self, name) for name in _FIELDS)


def _count(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:12]) <= 1_000_000):
        raise BadQuery(f"{name} is {text[:40]!r}: it is a number from 1 on")
    return int(text)
