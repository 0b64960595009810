"""Carry the context of an attempt into the threads that start inside it.

``asyncio`` tasks inherit their context. Plain threads and thread pools do not, and agents' tools often run in
them. Invariant: a pool's worker keeps nothing between two jobs.

``opentelemetry-instrumentation-threading`` 0.66b1 does not suffice: the worker of a pool stays in the context
of the attempt that started it and keeps that attempt alive, and callers that
:data:`~agentlightning.capture.identity.CALLER_SOURCES` find do not reach the thread.
"""

from __future__ import annotations

import concurrent.futures.thread as pool
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from opentelemetry import context as otel

from agentlightning.capture.context import attached, current_attempt
from agentlightning.capture.identity import thread_context
from agentlightning.capture.instrument.patching import Patch


def _run_in(context: otel.Context, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with attached(context):
        return function(*args, **kwargs)


def patch_threads() -> tuple[Patch, ...]:
    """Patch ``Thread.start`` and ``ThreadPoolExecutor.submit``; the caller undoes the patches."""
    return Patch(threading.Thread, "start", _start), Patch(pool.ThreadPoolExecutor, "submit", _submit)


def _start(wrapped: Callable[..., Any], thread: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    is_worker = getattr(thread, "_target", None) is getattr(pool, "_worker", None)
    if current_attempt() is not None and not is_worker:  # a pool's worker outlives the attempt
        thread.run = partial(_run_in, thread_context(), thread.run)
    return wrapped(*args, **kwargs)


def _submit(wrapped: Callable[..., Any], executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if current_attempt() is not None and args:
        args = (partial(_run_in, thread_context(), args[0]), *args[1:])
    return wrapped(*args, **kwargs)
