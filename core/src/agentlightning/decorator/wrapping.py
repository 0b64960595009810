"""Methods with a mark around what runs in them: each keeps its kind, its signature and what it returns.

Invariant: a generator's mark holds while its own code runs, never across a yield.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any

from agentlightning.capture.entries import undecorated as undecorated, wrap_entry
from agentlightning.capture.spans.generators import close_stream
from agentlightning.decorator.entry_call import EntryCall

BeginCall = Callable[[tuple[Any, ...]], EntryCall]
"""One run of the method, given the positional arguments of the call."""


def wrap_method(
    method: Callable[..., Any], begin_call: BeginCall, inner: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A wrapper of ``method``'s kind that marks what runs in it; ``inner``: what it calls instead of it."""
    wrapper: Any
    run = inner or method
    if inspect.isasyncgenfunction(method):
        wrapper = _async_generator(run, begin_call)
    elif inspect.isgeneratorfunction(method):
        wrapper = _generator(run, begin_call)
    elif inspect.iscoroutinefunction(method):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            entry = begin_call(args)
            with entry.active():
                value = await run(*args, **kwargs)
            await entry.reward_awaited(value)
            return value

        wrapper = coroutine
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            entry = begin_call(args)
            with entry.active():
                result = run(*args, **kwargs)
            if inspect.iscoroutine(result):
                return _awaited(result, entry)
            entry.reward_returned(result)
            return result

        wrapper = call
    functools.update_wrapper(wrapper, method)
    wrapper.__agl_unmarked__ = (wrapper, method)
    made: Any = wrap_entry(wrapper)
    made.__agl_unmarked__ = (made, method)
    return made  # type: ignore[no-any-return]


async def _awaited(result: Coroutine[Any, Any, Any], entry: EntryCall) -> Any:
    """What a method left to be awaited, under its mark."""
    with entry.active():
        value = await result
    await entry.reward_awaited(value)
    return value


def _async_generator(
    method: Callable[..., AsyncGenerator[Any, Any]], begin_call: BeginCall
) -> Callable[..., AsyncGenerator[Any, Any]]:
    """The last item is what it came to."""

    async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        entry, item = begin_call(args), None
        source = method(*args, **kwargs)
        advance = source.__anext__()
        try:
            while True:
                with entry.active():
                    try:
                        item = await advance
                    except StopAsyncIteration:
                        break
                try:
                    advance = source.asend((yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:  # thrown in by the caller
                    advance = source.athrow(error)
            await entry.reward_awaited(item)
        finally:
            with entry.active():
                await close_stream(source)

    return stream


def _generator(
    method: Callable[..., Generator[Any, Any, Any]], begin_call: BeginCall
) -> Callable[..., Generator[Any, Any, Any]]:
    """What it returns, else the last item, is what it came to."""

    def stream(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        entry, item = begin_call(args), None
        source = method(*args, **kwargs)
        advance = functools.partial(next, source)
        try:
            while True:
                with entry.active():
                    try:
                        item = advance()
                    except StopIteration as end:
                        returned = end.value
                        break
                try:
                    advance = functools.partial(source.send, (yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:  # thrown in by the caller
                    advance = functools.partial(source.throw, error)
            entry.reward_returned(item if returned is None else returned)
            return returned
        finally:
            with entry.active():
                source.close()

    return stream
