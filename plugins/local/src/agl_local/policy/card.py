"""What a model's card (``README.md`` of its repository) says: the licence, and what the model is.

Invariant: a card is a stranger's text. It is parsed as data, cut, and returned as one printable line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_FRONT = re.compile(r"\A---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)(.*)", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_MOST = 300
"""Characters of a card that are kept."""
_LONGEST = 100_000
"""Characters of the fields before a card's text."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The parts of a card that are shown."""

    licence: str
    about: str


def read_card(path: Path) -> ModelCard:
    """Read the card at ``path``; there may be none, or one without a licence."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    front, body = found.groups() if (found := _FRONT.match(text)) else ("", text)
    return ModelCard(_licence(front) or "the model's card names none", _about(body))


def one_line(text: str) -> str:
    """Return ``text`` without line breaks and control characters, and not too long."""
    plain = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return plain if len(plain) <= _MOST else f"{plain[:_MOST].rpartition(' ')[0] or plain[:_MOST]} …"


def _licence(front: str) -> str:
    if len(front) > _LONGEST:
        return ""
    try:
        fields: Any = yaml.safe_load(front)
    except (yaml.YAMLError, RecursionError, ValueError):  # ValueError: a date that is none
        return ""
    if not isinstance(fields, dict):
        return ""
    given = fields.get("license") or ""
    names = given if isinstance(given, list) else [given]
    if names == ["other"]:  # its name and its text have fields of their own
        names = [fields.get("license_name") or "other", fields.get("license_link") or ""]
    return one_line(", ".join(name for name in names if isinstance(name, str) and name))


def _about(body: str) -> str:
    """Return the first paragraph of prose: no heading, list, table, code, HTML or row of pictures."""
    for paragraph in re.split(r"\n\s*\n", body):
        text = _LINK.sub(r"\1", paragraph.replace("**", "")).strip()
        if re.match(r"[^\W\d_]", text) and len(text.split()) >= 4:
            return one_line(text)
    return ""
