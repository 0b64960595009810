"""Keys that a run has elsewhere or under another name: in its own sections, and in those of other tools, such
as ``actor_rollout_ref`` or ``trainer``.

Core refuses an unknown key by itself, and an unknown section by its name. Here the words that have a place
are found below such a section too, and a key is read with its section: ``evaluation.steps`` are
``evaluation_steps``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentlightning.plugins.suite import not_installed
from agentlightning.train.config import Fields, fields
from agentlightning.types.base import ConfigError, meant, words


def refuse(data: dict[str, Any], place: str) -> None:
    """Raise :class:`ConfigError` with a line for each key that stands elsewhere or is called otherwise here.
    Other unknown keys are left to the checks that follow.
    """
    known = fields()
    found = [
        pair
        for name, value in data.items()
        for pair in (_of_ours(name, value, known) if name in known.model.model_fields else _of(name, value))
        if name in known.model.model_fields or name in known.section_of or not not_installed("field", name)
    ]
    if any(hint for _, hint in found):
        raise ConfigError("\n".join(f"{place}: {key}: there is no such key{hint}" for key, hint in found))


def _of_ours(name: str, value: Any, known: Fields) -> Iterator[tuple[str, str]]:
    """Yield the keys of a run's own section that are another section's, or mean something with its name."""
    if not isinstance(value, Mapping):
        return
    own = known.sections[name].model_fields if name in known.sections else None
    for key in map(str, value):
        joined = words()["field"].get(f"{name}_{key}")
        if own is None and joined is None:
            continue  # a field that takes a mapping, with keys of its own
        if key not in (own or ()) and (joined or key in known.section_of):
            yield f"{name}.{key}", f". It is {joined}" if joined else meant(key)


def _of(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the keys of another tool's section, each with what is said of it."""
    yield from _keys(name, name, value) if isinstance(value, Mapping) else ()


def _keys(path: str, name: str, value: Any) -> list[tuple[str, str]]:
    """Return the keys below ``path``, each with what is said of it; itself if none of them is known."""
    inner = value.items() if isinstance(value, Mapping) else ()
    below = [
        (f"{path}.{key}", f". It is {joined}")
        if (joined := words()["field"].get(f"{name}_{key}")) is not None and not isinstance(one, Mapping)
        else pair
        for key, one in inner
        for pair in _keys(f"{path}.{key}", str(key), one)
    ]
    return below if any(hint for _, hint in below) else [(path, meant(name))]
