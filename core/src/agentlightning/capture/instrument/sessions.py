"""Capture for the length of a session; sessions of one process share what is switched on.

The first session that needs an instrumentor switches it on, the last one switches it off; whatever was on
before any session (the user's own ``instrument()``) stays on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

from agentlightning.capture import install, installed, uninstall

_lock = Lock()
_users: Counter[type[Any]] = Counter()
"""Instrumentor class → sessions that need it, of those that we switched on."""
_installs = 0


@contextmanager
def capturing(instrumentors: Sequence[Any]) -> Iterator[None]:
    """Capture, with these instrumentors (singletons per class) switched on, within the block."""
    mine = _begin(instrumentors)
    try:
        yield
    finally:
        _end(mine)


def capturing_for(tracer: Any, instrumentors: Sequence[Any]) -> AbstractContextManager[None]:
    """As :func:`capturing`, unless ``tracer.captures`` is false."""
    return capturing(instrumentors) if getattr(tracer, "captures", True) else nullcontext()


def _begin(instrumentors: Sequence[Any]) -> list[Any]:
    global _installs
    with _lock:
        if _installs or not installed():
            install()
            _installs += 1
            counted = True
        else:
            counted = False  # the user's own
        mine: list[Any] = [None] if counted else []
        for one in instrumentors:
            if _users[type(one)] or not one.is_instrumented_by_opentelemetry:
                one.instrument()
                _users[type(one)] += 1
                mine.append(one)
    return mine


def _end(mine: list[Any]) -> None:
    global _installs
    with _lock:
        for one in reversed(mine):
            if one is None:
                _installs -= 1
                if not _installs:
                    uninstall()
                continue
            _users[type(one)] -= 1
            if not _users[type(one)]:
                one.uninstrument()
