"""Values as the tools write them: times, nested attributes, JSON within text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from agentlightning.webserver.body import check_plain


def seconds(value: Any) -> float:
    """Return a time as seconds since 1970: from ISO 8601 (UTC if it names no zone), or from seconds,
    milliseconds or nanoseconds, which are told apart by their size. 0.0 if it is none.
    """
    if isinstance(value, str):
        if value.lstrip("-").isdigit():
            return seconds(int(value))
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return 0.0
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return value / 1e9 if value > 1e16 else value / 1e3 if value > 1e11 else float(value)


def parsed(value: Any) -> Any:
    """Return the value of JSON text, or the value itself where it is not JSON text, or nested too deeply."""
    if isinstance(value, str) and value[:1] in ("{", "[", '"'):
        try:
            found = json.loads(value)
            check_plain(found)
        except (ValueError, RecursionError):
            return value
        return found
    return value


def flat(value: Any, before: str = "") -> dict[str, Any]:
    """Return nested mappings and lists as one mapping of dotted names, as OpenTelemetry's attributes are."""
    found: dict[str, Any] = {}
    for name, inner in _entries(value):
        place = f"{before}.{name}" if before else name
        if isinstance(inner, Mapping) or (
            isinstance(inner, list) and any(isinstance(i, Mapping) for i in inner)
        ):
            found |= flat(inner, place)
        else:
            found[place] = inner
    return found


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(name), inner) for name, inner in value.items())
    elif isinstance(value, list):
        yield from ((str(place), inner) for place, inner in enumerate(value))


def numbered(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the items of a list that is spelt as ``prefix.0.name``, ``prefix.1.name``, …"""
    items: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if key.startswith(prefix + "."):
            place, _, name = key[len(prefix) + 1 :].partition(".")
            if place.isdigit() and name:
                items.setdefault(int(place), {})[name] = value
    return [items[place] for place in sorted(items)]
