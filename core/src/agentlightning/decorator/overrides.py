"""A mark on a class holds for its subclasses: their own versions of an entry method are marked as well.

Without this, a subclass that overrides the method and does not call ``super()`` would lose its base's mark in
silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

HOOK = "__init_subclass__"
Mark = Callable[[type], None]
"""Marks what a subclass overrides."""


def mark_subclasses(cls: type, mark: Mark) -> None:
    """Call ``mark`` with every subclass of ``cls``: now with those that exist, and later with each that is
    made, once for each class.
    """
    for subclass in _below(cls):
        mark(subclass)
    if getattr(getattr(cls, HOOK), "__agl_marks__", False):
        return  # a base of this class is marked

    own = vars(cls).get(HOOK)

    def init_subclass(subclass: type, /, **kwargs: Any) -> None:
        _next_hook(subclass, hook, own).__get__(None, subclass)(**kwargs)
        mark(subclass)

    init_subclass.__agl_marks__ = True  # type: ignore[attr-defined]
    hook: Any = classmethod(init_subclass)
    setattr(cls, HOOK, hook)


def _below(cls: type) -> Iterator[type]:
    """All subclasses, nearest first."""
    children: list[type] = type.__subclasses__(cls)
    for subclass in children:
        yield subclass
        yield from _below(subclass)


def _next_hook(subclass: type, hook: Any, own: Any) -> Any:
    """What ``hook`` stands in place of: the class's own hook, else that of the next base. The class is looked
    for by its hook, because ``dataclass(slots=True)`` replaces it by another with the same attributes.
    """
    if own is not None:
        return own
    classes = iter(subclass.__mro__)
    for base in classes:
        if vars(base).get(HOOK) is hook:
            break
    return next(vars(base)[HOOK] for base in classes if HOOK in vars(base))
