"""``operation``: a named part of an agent's work as a span, by a block or a decorator.

Inside it, the operation is the current OpenTelemetry span, so that calls and tools made there hang below it.
Invariant: an operation changes neither what its code returns nor what it raises.
"""

from __future__ import annotations

import functools
import inspect
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import AttemptContext, attached, current_attempt
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.delivery import deliver, new_span
from agentlightning.capture.identity import RemoteParentSpan, framework_tags, parent_ids
from agentlightning.capture.spans.convert import error_text, jsonable

F = TypeVar("F", bound=Callable[..., Any])
NAME = "agl.operation.name"
INPUT = "agl.operation.input"
OUTPUT = "agl.operation.output"


class operation:
    """``with operation("search", query=q) as op: …; op.output = hits``, or ``@operation("search")``.

    As a decorator it records arguments and result, of functions and coroutine functions. Outside an attempt
    the code runs without a span (counted).
    """

    def __init__(self, name: str, **inputs: Any) -> None:
        self.name, self.inputs = name, inputs
        self.output: Any = None
        """Set it inside the block to record a result."""
        self._context: AttemptContext | None = None
        self._entered: AbstractContextManager[Any] | None = None

    def __enter__(self) -> operation:
        self._context = context = current_attempt()
        if context is None:
            COUNTS.add("emit-outside-attempt")
            return self
        self._parent, self._agent = parent_ids(context.attempt_id), framework_tags().get("agent")
        self._id, self._start = secrets.randbits(64) or 1, time.time()
        span = RemoteParentSpan(int(self._parent[0], 16), self._id, self._agent)
        self._entered = attached(trace.set_span_in_context(span))
        self._entered.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._context is None or self._entered is None:
            return
        self._entered.__exit__(None, None, None)
        attributes = {
            NAME: self.name,
            INPUT: self.inputs,
            OUTPUT: self.output,
            semconv.AGENT_NAME: self._agent,
        }
        span = new_span(
            self._context,
            semconv.OPERATION_SPAN,
            self._parent,
            attributes,
            span_id=f"{self._id:016x}",
            start=self._start,
            error=f"{type(error).__name__}: {error_text(error)}" if error else None,
        )
        span.attributes = jsonable(span.attributes)
        deliver(self._context, span)

    def __call__(self, function: F) -> F:
        """Decorate ``function``; each of its calls is one operation."""
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(
                f"operation({self.name!r}) cannot decorate the generator {function.__qualname__}: "
                "use `with operation(…)` around the code that consumes it"
            )
        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._of_call(function, args, kwargs) as call:
                    call.output = await function(*args, **kwargs)
                    return call.output

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self._of_call(function, args, kwargs) as call:
                    call.output = function(*args, **kwargs)
                    return call.output

        return wrapper  # type: ignore[no-any-return]

    def _of_call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> operation:
        try:
            given = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
        except TypeError:  # the call itself will raise it, with its own message
            given = {}
        given.pop("self", None)
        return operation(self.name, **{**self.inputs, **given})
