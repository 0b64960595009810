"""A method patch that can be undone completely.

Invariant: after :meth:`Patch.undo` our wrapper is out of the chain; below a foreign wrapper that hides it, it
passes every call through unchanged. Wrappers that others put above ours stay in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import wrapt

_Proxy: Any = getattr(wrapt, "BaseObjectProxy", wrapt.ObjectProxy)
"""wrapt 2 gave its proxies a new base class."""

Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""``(wrapped, instance, args, kwargs) -> result``, as in wrapt; a method's ``instance`` is never ``None``."""


class Patch:
    """Wraps ``owner.name`` when it is made."""

    def __init__(self, owner: Any, name: str, wrapper: Wrapper) -> None:
        self._owner, self._name = owner, name
        self._own = name in vars(owner)
        self._original: Any = vars(owner)[name] if self._own else getattr(owner, name)
        self._on = True
        bound = inspect.ismethod(self._original) or isinstance(self._original, staticmethod | classmethod)
        if inspect.isclass(owner) and not bound:
            wrapper = _of_method(wrapper)
        self._proxy = wrapt.FunctionWrapper(self._original, wrapper, enabled=lambda: self._on)
        setattr(owner, name, self._proxy)

    def undo(self) -> None:
        """Remove the wrapper. A second call does nothing."""
        self._on = False
        current = vars(self._owner).get(self._name)
        if current is self._proxy:
            if self._own:
                setattr(self._owner, self._name, self._original)
            else:
                delattr(self._owner, self._name)
            return
        while isinstance(current, _Proxy):  # a foreign wrapper above ours: bridge the gap below it
            if current.__wrapped__ is self._proxy:
                current.__wrapped__ = self._original
                return
            current = current.__wrapped__


def _of_method(wrapper: Wrapper) -> Wrapper:
    """Return ``wrapper`` for a method that may be called as a plain function, as ``@agl.agent`` does."""

    def bound(
        wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if instance is None and args:
            instance, *rest = args
            wrapped, args = wrapped.__get__(instance, type(instance)), tuple(rest)
        return wrapper(wrapped, instance, args, kwargs)

    return bound
