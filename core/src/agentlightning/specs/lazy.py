"""Objects that are imported when they are first used, so that listing plugins costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_type(place: str) -> Callable[[], Any]:
    """Return a function that imports and returns the object at ``"package.module:name"``."""
    module, _, name = place.partition(":")
    return lambda: getattr(import_module(module), name)


def lazily(place: str) -> Callable[..., Any]:
    """Return a function that imports the one at ``"package.module:name"`` on its first call, and calls it."""
    module, _, name = place.partition(":")

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call
