"""Methods with a mark around what runs in them: each keeps its kind, its signature and what it returns.

Invariant: a generator's mark holds while its own code runs, never across a yield.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from agentlightning.capture.entries import undecorated as undecorated, wrap_entry
from agentlightning.capture.generators import GeneratorHooks, hooked_async_generator, hooked_generator
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
        wrapper = hooked_async_generator(run, lambda args, kwargs: _GeneratorCall(begin_call(args), True))
    elif inspect.isgeneratorfunction(method):
        wrapper = hooked_generator(run, lambda args, kwargs: _GeneratorCall(begin_call(args), False))
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


class _GeneratorCall(GeneratorHooks):
    """One run of a method that is a generator: its result is what it returned, else its last item."""

    def __init__(self, entry: EntryCall, is_async: bool) -> None:
        self._entry, self._is_async = entry, is_async

    def activate(self) -> AbstractContextManager[None]:
        return self._entry.active()

    def on_return(self, value: Any) -> Awaitable[None] | None:
        if self._is_async:
            return self._entry.reward_awaited(value)
        self._entry.reward_returned(value)
        return None
