"""Sections of other tools' files, such as ``actor_rollout_ref`` or ``trainer``: refused key by key.

Core refuses an unknown section by its name, which says little where the words that have a place here stand
some levels below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentlightning.plugins.suite import not_installed
from agentlightning.train.config import fields
from agentlightning.types.base import ConfigError, meant


def refuse(data: dict[str, Any], place: str) -> None:
    """Raise :class:`ConfigError` with a line for each key of the sections that no run has, if one of them is
    known under another name. Other unknown sections are left to the checks that follow.
    """
    sections = {
        name: value
        for name, value in data.items()
        if isinstance(value, Mapping) and name not in fields().model.model_fields
    }
    found = [
        (key, hint)
        for name, value in sections.items()
        if not not_installed("field", name)
        for key, hint in _keys(name, name, value)
    ]
    if any(hint for _, hint in found):
        raise ConfigError("\n".join(f"{place}: {key}: there is no such key{hint}" for key, hint in found))


def _keys(path: str, name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys below ``path``, each with what is said of it; itself if none is known."""
    inner = value.items() if isinstance(value, Mapping) else ()
    below = [pair for key, one in inner for pair in _keys(f"{path}.{key}", str(key), one)]
    yield from below if any(hint for _, hint in below) else [(path, meant(name))]
