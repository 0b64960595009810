"""Threads started inside an attempt work for it.

``asyncio`` tasks inherit their context; plain threads and thread pools do not, and agents' tools often run in
them. Only what is ours travels (attempt, tags, mark, OpenTelemetry's context), and only out of an attempt.
Invariant: a pool's worker keeps nothing between two jobs.
"""

from __future__ import annotations

import concurrent.futures.thread as pool
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from opentelemetry import context as otel, trace

from agentlightning.capture.context import _current, _scope, _tags, current_attempt
from agentlightning.capture.identity import current_span
from agentlightning.capture.instrument.patching import Patch


def carried(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, to be called in another thread in the name of the present attempt."""
    ours = _current.get(), _tags.get(), _scope.get()
    return partial(_run, function, ours, trace.set_span_in_context(current_span()))


def _run(function: Callable[..., Any], ours: Any, span: Any, *args: Any, **kwargs: Any) -> Any:
    attempt, tags, scope = ours
    tokens = _current.set(attempt), _tags.set(tags), _scope.set(scope), otel.attach(span)
    try:
        return function(*args, **kwargs)
    finally:
        otel.detach(tokens[3])
        _scope.reset(tokens[2])
        _tags.reset(tokens[1])
        _current.reset(tokens[0])


def patch_threads() -> tuple[Patch, ...]:
    """Apply the patches; undo each to switch off."""
    return Patch(threading.Thread, "start", _start), Patch(pool.ThreadPoolExecutor, "submit", _submit)


def _start(wrapped: Callable[..., Any], thread: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_worker = getattr(thread, "_target", None) is getattr(pool, "_worker", None)
    if (
        current_attempt() is not None and not is_worker
    ):  # a pool's worker outlives the attempt; its jobs carry theirs
        thread.run = carried(thread.run)
    return wrapped(*args, **kwargs)


def _submit(wrapped: Callable[..., Any], executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if current_attempt() is not None and args:
        args = (carried(args[0]), *args[1:])
    return wrapped(*args, **kwargs)
