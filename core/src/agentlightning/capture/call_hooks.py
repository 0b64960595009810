"""Run the code of functions within something: a span, the scope of a decorated agent, an attempt.

Invariants: a function keeps its kind. What :meth:`CallHooks.activate` sets holds while a generator's own code
runs, in whatever task reads it, and never for the reader between two items. The generator gets what the
reader sends and throws.

*Entries* are decorated functions and methods, whose outermost calls may be rollouts of their own: ``agl run
--per-entry`` adds to :data:`ENTRY_WRAPPERS` before the program decorates anything. Without a wrapper, entries
stay as they are.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial, update_wrapper
from typing import Any


class CallHooks:
    """Hooks around one call. Every method is optional to override."""

    def around(self) -> AbstractContextManager[Any]:
        """Return the block around the whole call; of a generator, from its first item until it is closed. The
        block gets what the call raises: GeneratorExit when the reader gives a generator up.
        """
        return nullcontext()

    def activate(self) -> AbstractContextManager[Any]:
        """Return the block around the function's code; of a generator, around each stretch of it."""
        return nullcontext()

    def on_item(self, item: Any) -> None:
        """The generator has made an item."""

    def on_return(self, value: Any) -> None:
        """The function returned ``value``, or a generator was read to its end: then ``value`` is its returned
        value, or its last item if it returned ``None``."""

    async def on_async_return(self, value: Any) -> None:
        """As :meth:`on_return`, for a coroutine and an async generator."""
        self.on_return(value)


HooksOf = Callable[[tuple[Any, ...], dict[str, Any]], CallHooks]
"""Makes the hooks of one call from its arguments; of a generator, when the first item is asked for."""


def hooked(
    function: Callable[..., Any], hooks_of: HooksOf, run: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return a function of the same kind (plain, coroutine, generator) with hooks around its code.

    ``run``: the function to call in place of ``function``. A coroutine that a plain function returns belongs
    to the call.
    """
    run = run or function
    made: Callable[..., Any]
    if inspect.isasyncgenfunction(function):
        made = hooked_async_generator(run, hooks_of)
    elif inspect.isgeneratorfunction(function):
        made = hooked_generator(run, hooks_of)
    elif inspect.iscoroutinefunction(function):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            hooks = hooks_of(args, kwargs)
            return await _awaited(hooks, hooks.around(), run(*args, **kwargs))

        made = coroutine
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            hooks = hooks_of(args, kwargs)
            with ExitStack() as around:
                around.enter_context(hooks.around())
                with hooks.activate():
                    value = run(*args, **kwargs)
                if inspect.iscoroutine(value):
                    return _awaited(hooks, around.pop_all(), value)
                hooks.on_return(value)
            return value

        made = call
    return update_wrapper(made, function)


async def _awaited(hooks: CallHooks, around: AbstractContextManager[Any], work: Awaitable[Any]) -> Any:
    with around:
        with hooks.activate():
            value = await work
        await hooks.on_async_return(value)
    return value


def hooked_async_generator(
    function: Callable[..., AsyncGenerator[Any, Any]], hooks_of: HooksOf
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """Return ``function``, which makes an async generator, with hooks around the generator's code."""

    async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        hooks, source, last = hooks_of(args, kwargs), function(*args, **kwargs), None
        with hooks.around():
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
                await hooks.on_async_return(last)
            finally:
                with hooks.activate():
                    await _close(source)

    return stream


def hooked_generator(
    function: Callable[..., Generator[Any, Any, Any]], hooks_of: HooksOf
) -> Callable[..., Generator[Any, Any, Any]]:
    """As :func:`hooked_async_generator` for a plain generator; what it returns is returned."""

    def stream(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        hooks, source, last = hooks_of(args, kwargs), function(*args, **kwargs), None
        with hooks.around():
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
            finally:
                with hooks.activate():
                    source.close()

    return stream


async def _close(source: Any) -> None:
    """Close an async generator. One that hangs inside an item, with nobody left to wait for it, refuses that;
    the garbage collector closes it.
    """
    if not getattr(source, "ag_running", False):
        await source.aclose()


Entry = Callable[..., Any]
ENTRY_WRAPPERS: list[Callable[[Entry], Entry]] = []
"""Wrappers of entries; each keeps an entry's kind (plain, coroutine, generator)."""


def undecorated(function: Entry) -> Entry:
    """Return the method under the wrapper of ``@agl.agent``; any other ``function`` as it is. Other wrappers
    copy the attribute, so it names the wrapper that it belongs to.
    """
    wrapper, method = getattr(function, "__agl_undecorated__", (None, function))
    return method if wrapper is function else function


def wrap_entry(entry: Entry) -> Entry:
    """Return ``entry`` in all :data:`ENTRY_WRAPPERS`."""
    for wrapper in ENTRY_WRAPPERS:
        entry = wrapper(entry)
    return entry
