"""Generators whose own code runs within something: a span, the scope of a decorated agent, an attempt.

Invariant: what :meth:`GeneratorHooks.activate` sets holds while the generator's own code runs, in whatever
task reads it, and never for the reader between two items. What the reader sends and throws reaches the
generator.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any


class GeneratorHooks:
    """What happens around the code of one generator. Override what is needed."""

    def activate(self) -> AbstractContextManager[Any]:
        """Entered around each stretch of the generator's code."""
        return nullcontext()

    def begin(self) -> None:
        """The reader asks for the first item."""

    def on_item(self, item: Any) -> None:
        """The generator has made an item."""

    def on_return(self, value: Any) -> Awaitable[None] | None:
        """The generator was read to its end. ``value``: what it returned, else its last item. Of an async
        generator the result is awaited."""
        return None

    def on_error(self, error: BaseException) -> None:
        """It raised, or was given up (``GeneratorExit``)."""

    def finish(self) -> None:
        """It is closed, whatever end it came to."""


HooksOf = Callable[[tuple[Any, ...], dict[str, Any]], GeneratorHooks]
"""The hooks of one call, from its arguments; called when the first item is asked for."""


def hooked_async_generator(
    function: Callable[..., AsyncGenerator[Any, Any]], hooks_of: HooksOf
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """``function``, which makes an async generator, with hooks around the generator's code."""

    async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        hooks, source, last = hooks_of(args, kwargs), function(*args, **kwargs), None
        hooks.begin()
        try:
            advance = anext(source)
            while True:
                with hooks.activate():
                    try:
                        last = await advance
                    except StopAsyncIteration:
                        break
                hooks.on_item(last)
                try:
                    sent = yield last
                except GeneratorExit:
                    raise
                except BaseException as error:  # thrown in by the reader
                    advance = source.athrow(error)
                else:
                    advance = anext(source) if sent is None else source.asend(sent)
            if (done := hooks.on_return(last)) is not None:
                await done
        except BaseException as error:
            hooks.on_error(error)
            raise
        finally:
            try:
                with hooks.activate():
                    await _close(source)
            finally:
                hooks.finish()

    return stream


def hooked_generator(
    function: Callable[..., Generator[Any, Any, Any]], hooks_of: HooksOf
) -> Callable[..., Generator[Any, Any, Any]]:
    """As :func:`hooked_async_generator` for a plain generator; what it returns is returned."""

    def stream(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        hooks, source, last = hooks_of(args, kwargs), function(*args, **kwargs), None
        hooks.begin()
        try:
            advance = partial(next, source)
            while True:
                with hooks.activate():
                    try:
                        last = advance()
                    except StopIteration as end:
                        returned = end.value
                        break
                hooks.on_item(last)
                try:
                    sent = yield last
                except GeneratorExit:
                    raise
                except BaseException as error:  # thrown in by the reader
                    advance = partial(source.throw, error)
                else:
                    advance = partial(next, source) if sent is None else partial(source.send, sent)
            hooks.on_return(last if returned is None else returned)
            return returned
        except BaseException as error:
            hooks.on_error(error)
            raise
        finally:
            try:
                with hooks.activate():
                    source.close()
            finally:
                hooks.finish()

    return stream


async def _close(source: Any) -> None:
    """Close an async generator. One that hangs inside an item, with nobody left to wait for it, refuses that:
    as without us, the garbage collector closes it.
    """
    if not getattr(source, "ag_running", False):
        await source.aclose()
