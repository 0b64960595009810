"""``operation``, a part of the work as a block or as a decorated function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import TracebackType
from typing import Any, TypeVar

from agentlightning.capture.call_hooks import CallHooks, hooked
from agentlightning.capture.emit import INPUT, OUTPUT, recorded_operation

F = TypeVar("F", bound=Callable[..., Any])


class operation(CallHooks):
    """``with operation("search", query=q) as op: …; op.output = hits``, or ``@operation("search")``.

    Inside it, the operation is the current OpenTelemetry span, and so the parent of the calls and tools in
    it. It changes neither what its code returns nor what it raises.

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

    def on_return(self, value: Any) -> None:
        """Record the result of a decorated function."""
        self.output = value

    def __enter__(self) -> operation:
        self._block = self.around()
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, tb)

    @contextmanager
    def around(self) -> Iterator[None]:
        """Record the block, unless nothing is propagated."""
        about: dict[str, Any] = {}
        with recorded_operation(self.name, about) if self._propagate else nullcontext():
            try:
                yield
            finally:
                about |= {INPUT: self.inputs, OUTPUT: self.output}

    def __call__(self, function: F) -> F:
        """Decorate ``function``: record each of its calls as one operation."""
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise TypeError(
                f"operation({self.name!r}) cannot decorate the generator {function.__qualname__}: "
                "use `with operation(…)` around the code that consumes it"
            )

        def of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> operation:
            try:
                given = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
            except TypeError:  # the call itself raises it, with its own message
                given = {}
            given.pop("self", None)
            made: operation = type(self)(self.name, propagate=self._propagate)
            made.set_input(**{**self.inputs, **given})
            return made

        return hooked(function, of_call)  # type: ignore[return-value]
