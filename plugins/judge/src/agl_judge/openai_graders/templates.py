"""Templates of graders: ``{{ item.x }}`` and ``{{ sample.output_text }}``, with paths like ``a.b[0].c``.

Invariant: a place that is not there is an error, never an empty text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from agl_judge.client import BadVerdict

_PLACE = re.compile(r"\{\{\s*(.*?)\s*\}\}", re.DOTALL)
_PATH = re.compile(r"(item|sample)((?:\.[A-Za-z_][\w-]*|\[\d+\])+)")
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]")


def places(template: str) -> list[str]:
    """Return what stands between the braces. Raise :class:`ValueError` for what is no path of a namespace."""
    found = [place[1] for place in _PLACE.finditer(template)]
    for place in found:
        if not _PATH.fullmatch(place):
            raise ValueError(f"{{{{ {place} }}}}: it is no path that begins with item. or sample.")
    return found


def fill(template: str, names: Mapping[str, Any]) -> str:
    """Return a template with values in place of its paths; what is no text is written as JSON."""

    def value(match: re.Match[str]) -> str:
        found = look_up(match[1], names)
        return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)

    return _PLACE.sub(value, template)


def look_up(path: str, names: Mapping[str, Any]) -> Any:
    """Return the value at a path. Raise :class:`BadVerdict` if there is none."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise BadVerdict(f"{path!r} is no path that begins with item. or sample.")
    found: Any = names[match[1]]
    for name, number in _STEP.findall(match[2]):
        try:
            found = found[int(number)] if number else found[name]
        except (LookupError, TypeError):
            raise BadVerdict(f"there is no {path}") from None
    return found
