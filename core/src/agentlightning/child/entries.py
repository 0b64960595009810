"""One rollout for each outermost call of a decorated entry: ``agl run --per-entry``.

The process asks for an attempt when the entry is called, works for it inside, and says how it ended; the
number that the entry returned is the rollout's reward. Invariants: a call inside an entry belongs to that
entry's rollout; what the entry returns and raises stays what it is; where no attempt can be had, the entry
runs in the process's own, counted.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, update_wrapper
from numbers import Real
from typing import Any

from agentlightning.capture.closing import close
from agentlightning.capture.context import AttemptContext, _current, attempt_context
from agentlightning.capture.convert import jsonable
from agentlightning.capture.counts import COUNTS
from agentlightning.capture.delivery import end_attempt
from agentlightning.capture.entries import AROUND, unmarked
from agentlightning.child.frames import Enter, Entered, Leave, Left
from agentlightning.child.imports import say
from agentlightning.child.line import Line
from agentlightning.child.settings import Settings
from agentlightning.types import LLM

DENIED = "entry-denied"
"""Counted: an entry that ran in the process's own attempt, because no other could be had."""


class Entries:
    """Opens attempts for entries over ``line``."""

    def __init__(self, line: Line, settings: Settings) -> None:
        self._line, self._settings = line, settings

    def install(self) -> None:
        """From now on what is decorated is an entry."""
        AROUND.append(self.around)

    def around(self, entry: Callable[..., Any]) -> Callable[..., Any]:
        """``entry`` with an attempt around its outermost calls, of the same kind."""
        if inspect.isasyncgenfunction(entry):
            made = _stream(self, entry)
        elif inspect.isgeneratorfunction(entry):
            made = _items(self, entry)
        elif inspect.iscoroutinefunction(entry):
            made = _coroutine(self, entry)
        else:
            made = _plain(self, entry)
        return update_wrapper(made, entry)

    def visit(self, entry: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Visit | None:
        """An attempt for this call; ``None`` inside another entry, or where none can be had."""
        if _current.get() is not None:
            return None
        task = _task(entry, args, kwargs)
        try:
            answer = self._line.ask(Enter(getattr(entry, "__qualname__", "entry"), task))
        except (OSError, ValueError) as error:
            answer, why = None, str(error)
        else:
            why = getattr(answer, "why", "")
        if isinstance(answer, Entered):
            return Visit(self._line, self._context(answer, task, scored=unmarked(entry) is not entry))
        COUNTS.add(DENIED)
        say(f"{getattr(entry, '__qualname__', 'the entry')}() gets no rollout of its own: {why}")
        return None

    def _context(self, at: Entered, task: Any, *, scored: bool) -> AttemptContext:
        settings = self._settings
        return AttemptContext(
            rollout_id=at.rollout_id,
            attempt_id=at.attempt_id,
            sink=self._line.span,
            key=at.key,
            gateway=settings.gateway,
            tags=settings.tags,
            policies=settings.policies,
            resources={"policy": LLM(endpoint=settings.gateway, model=settings.model, api_key=at.key)},
            task=task,
            worth=[] if scored else None,
        )


class Visit:
    """One call of an entry, which has an attempt to itself."""

    def __init__(self, line: Line, context: AttemptContext) -> None:
        self._line, self._context = line, context
        self._over = False

    def here(self) -> AbstractContextManager[Any]:
        """Code within the block is the entry's."""
        return attempt_context(self._context)

    @contextmanager
    def ending(self) -> Iterator[list[Any]]:
        """At the end of the block the entry has come to what is in the list, or raised. A stream that nobody
        reads to its end has come to its last item.
        """
        came: list[Any] = [None]
        try:
            yield came
        except GeneratorExit:
            self.leave(came[0])
            raise
        except BaseException as error:
            self.failed(error)
            raise
        self.leave(came[0])

    def failed(self, error: BaseException) -> None:
        """The entry raised."""
        self.leave(error=_said(error))

    def leave(self, result: Any = None, *, error: str | None = None) -> None:
        """The entry has returned, or raised: put its attempt on record. A number is its reward."""
        if self._over:
            return
        self._over = True
        if error is None and self._context.faults:
            error = _said(self._context.faults[0])
        end_attempt(self._context.attempt_id)
        result = next(iter(self._context.worth or ()), result)
        try:
            answer = self._line.ask(Leave(self._context.attempt_id, reward=_number(result), error=error))
        except (OSError, ValueError) as failed:
            COUNTS.add("entry-end-lost")
            say(f"the end of attempt {self._context.attempt_id} could not be put on record: {failed}")
        else:
            if not isinstance(answer, Left):
                COUNTS.add("entry-end-lost")


def _number(result: Any) -> float | None:
    """The number that an entry came to, ``None`` for what is none; scalars of array libraries are numbers.
    One that is not finite is handed on: it is no reward, and says so where rewards are taken.
    """
    try:
        if callable(item := getattr(result, "item", None)) and getattr(result, "shape", None) == ():
            result = item()
        return float(result) if isinstance(result, Real) else None
    except OverflowError:
        return math.inf
    except Exception:  # whatever the object is, it cannot be read as a number
        return math.nan


def _said(error: BaseException) -> str:
    """An error as text that can be sent; errors of programs may fail at saying even that."""
    try:
        text = str(error)
    except Exception as another:
        text = f"its message cannot be read ({type(another).__name__})"
    return f"{type(error).__name__}: {text}"[:2000].encode(errors="replace").decode()


def _stream(entries: Entries, entry: Callable[..., Any]) -> Callable[..., Any]:
    """An async generator; the attempt holds while its own code runs, never across a yield."""

    async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        visit = entries.visit(entry, args, kwargs)
        here = visit.here if visit else nullcontext
        source, item = entry(*args, **kwargs), None
        advance = source.__anext__()
        with visit.ending() if visit else nullcontext([None]) as came:
            try:
                while True:
                    with here():
                        try:
                            came[0] = item = await advance
                        except StopAsyncIteration:
                            return
                    try:
                        advance = source.asend((yield item))
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # thrown in by the caller
                        advance = source.athrow(error)
            finally:
                with here():
                    await close(source)

    return stream


def _items(entries: Entries, entry: Callable[..., Any]) -> Callable[..., Any]:
    """A generator, likewise."""

    def items(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        visit = entries.visit(entry, args, kwargs)
        here = visit.here if visit else nullcontext
        source = entry(*args, **kwargs)
        advance = partial(next, source)
        with visit.ending() if visit else nullcontext([None]) as came:
            try:
                while True:
                    with here():
                        try:
                            came[0] = item = advance()
                        except StopIteration as end:
                            came[0] = came[0] if end.value is None else end.value
                            return end.value
                    try:
                        advance = partial(source.send, (yield item))
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # thrown in by the caller
                        advance = partial(source.throw, error)
            finally:
                with here():
                    source.close()

    return items


def _coroutine(entries: Entries, entry: Callable[..., Any]) -> Callable[..., Any]:
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        visit = entries.visit(entry, args, kwargs)
        if visit is None:
            return await entry(*args, **kwargs)
        return await _awaited(visit, entry(*args, **kwargs))

    return coroutine


def _plain(entries: Entries, entry: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function; what it leaves to be awaited belongs to the call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        visit = entries.visit(entry, args, kwargs)
        if visit is None:
            return entry(*args, **kwargs)
        try:
            with visit.here():
                result = entry(*args, **kwargs)
        except BaseException as error:
            visit.failed(error)
            raise
        if inspect.iscoroutine(result):
            return _awaited(visit, result)
        visit.leave(result)
        return result

    return call


async def _awaited(visit: Visit, work: Any) -> Any:
    with visit.ending() as came, visit.here():
        came[0] = await work
    return came[0]


def _task(entry: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the entry was called with, without its object: one argument as it is, several by name."""
    try:
        given = dict(inspect.signature(entry).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # the call itself will raise it, with its own message
        return None
    first = next(iter(given), None)
    if first in ("self", "cls"):
        del given[first]
    return jsonable(next(iter(given.values())) if len(given) == 1 else given)
