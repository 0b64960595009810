"""``operation``: record a named part of an agent's work as a span, with a block or a decorator.

Inside it, the operation is the current OpenTelemetry span, and so the parent of the calls and tools in it.
Invariant: an operation changes neither what its code returns nor what it raises.
"""

from __future__ import annotations

import functools
import inspect
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

from opentelemetry import trace

from agentlightning import semconv
from agentlightning.capture.context import attached, current_attempt
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.delivery import deliver, new_span
from agentlightning.capture.identity import RemoteParentSpan, framework_tags, parent_ids
from agentlightning.capture.spans.convert import describe_error, jsonable

F = TypeVar("F", bound=Callable[..., Any])
NAME = "agl.operation.name"
INPUT = "agl.operation.input"
OUTPUT = "agl.operation.output"


class operation:
    """``with operation("search", query=q) as op: …; op.output = hits``, or ``@operation("search")``.

    As a decorator it records arguments and result, of functions and coroutine functions. Outside an attempt
    the code runs without a span, and the operation is counted. ``propagate=False``: the code runs without a
    span.
    """

    def __new__(cls, name: str | Callable[..., Any] = "operation", **inputs: Any) -> Any:
        """Return an operation; of a function (``@operation``), the function with its own name's operation
        around it.
        """
        if callable(name):
            return cls(name.__qualname__, **inputs)(name)
        return super().__new__(cls)

    def __init__(self, name: str = "operation", *, propagate: bool = True, **inputs: Any) -> None:
        self.name, self.inputs = name, inputs
        self._propagate = propagate
        self.output: Any = None
        """Set it inside the block to record a result."""

    def set_input(self, *args: Any, **inputs: Any) -> None:
        """Record inputs that are known only inside the block."""
        self.inputs = {**self.inputs, **({"args": list(args)} if args else {}), **inputs}

    def set_output(self, output: Any) -> None:
        """Record a result."""
        self.output = output

    def __enter__(self) -> operation:
        self._block = self._recorded()
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, tb)

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """Deliver a span for the block, and make it the current OpenTelemetry span within."""
        if not self._propagate:
            yield
            return
        if (context := current_attempt()) is None:
            COUNTS.add("emit-outside-attempt")
            yield
            return
        parent, agent = parent_ids(context.attempt_id), framework_tags().get("agent")
        number, start, failed = secrets.randbits(64) or 1, time.time(), None
        current = RemoteParentSpan(int(parent[0], 16), number, agent)
        try:
            with attached(trace.set_span_in_context(current)):
                yield
        except BaseException as error:
            failed = describe_error(error)
            raise
        finally:
            about = {NAME: self.name, INPUT: self.inputs, OUTPUT: self.output, semconv.AGENT_NAME: agent}
            span_id = f"{number:016x}"
            span = new_span(
                context, semconv.OPERATION_SPAN, parent, about, span_id=span_id, start=start, error=failed
            )
            span.attributes = jsonable(span.attributes)
            deliver(context, span)

    def __call__(self, function: F) -> F:
        """Decorate ``function``: record each of its calls as one operation."""
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
        except TypeError:  # the call itself raises it, with its own message
            given = {}
        given.pop("self", None)
        made: operation = type(self)(self.name, propagate=self._propagate)
        made.set_input(**{**self.inputs, **given})
        return made
