"""Switch capture on for the length of a session.

The sessions of a process share instrumentors. The first session that needs one switches it on, and the last
session switches it off. What was on before any session (the user's own ``instrument()``) stays on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any

from agentlightning import capture

_lock = Lock()
_users: Counter[type[Any] | None] = Counter()
"""Instrumentor class, or ``None`` for capture itself → sessions that use it, if a session switched it on."""


@contextmanager
def capturing(instrumentors: Sequence[Any]) -> Iterator[None]:
    """Capture within the block, with these instrumentors (singletons of their classes) switched on."""
    with ExitStack() as session:
        with _lock:
            _use(session, None, capture.installed(), capture.install, capture.uninstall)
            for one in instrumentors:
                on = one.is_instrumented_by_opentelemetry
                _use(session, type(one), on, one.instrument, one.uninstrument)
        yield


def _use(
    session: ExitStack,
    key: type[Any] | None,
    on: bool,
    switch_on: Callable[[], object],
    switch_off: Callable[[], object],
) -> None:
    """Switch something on unless it is on, and off again when its last session ends."""
    if on and not _users[key]:
        return  # the user's own
    if not on:
        switch_on()
    _users[key] += 1
    session.callback(_leave, key, switch_off)


def _leave(key: type[Any] | None, switch_off: Callable[[], object]) -> None:
    with _lock:
        _users[key] -= 1
        if not _users[key]:
            switch_off()
