"""A rollout for each outermost call of a decorated entry: ``agl run --per-entry``.

When an entry is called, the process requests an attempt, runs the entry in it and reports its end. The number
that the entry returns is the reward. Invariants: a call inside an entry belongs to that entry's rollout; the
entry returns and raises the same values and errors as without capture; an entry that gets no attempt runs in
the attempt of the process and is counted.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from numbers import Real
from typing import Any

from msgspec.structs import asdict, replace

from agentlightning.capture.call_hooks import ENTRY_WRAPPERS, CallHooks, hooked, undecorated
from agentlightning.capture.context import ATTEMPT, AttemptContext, attempt_context
from agentlightning.capture.delivery import COUNTS, end_attempt
from agentlightning.capture.records import describe_error, jsonable
from agentlightning.types.arrays import unwrap_scalar
from agl_programs.inside.exporter import SpanExporter
from agl_programs.inside.import_hook import warn
from agl_programs.inside.messages import BeginEntry, EndEntry
from agl_programs.inside.settings import ChildSettings

ENTRY_DENIED = "entry-denied"
"""Count of entries that got no attempt and ran in the attempt of the process."""


def wrap_entries(exporter: SpanExporter, settings: ChildSettings) -> None:
    """Wrap the functions that the program decorates from now on, so that their outermost calls get attempts
    of their own.
    """

    def wrap(entry: Callable[..., Any]) -> Callable[..., Any]:
        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallHooks:
            if ATTEMPT.get() is not None:  # inside another entry
                return CallHooks()
            task = _call_arguments(entry, args, kwargs)
            return _begin_rollout(exporter, settings, entry, task) or CallHooks()

        return hooked(entry, begin)

    ENTRY_WRAPPERS.append(wrap)


def _begin_rollout(
    exporter: SpanExporter, settings: ChildSettings, entry: Callable[..., Any], task: Any
) -> EntryRollout | None:
    """Begin the rollout of a call. Return ``None`` if the request is refused."""
    name = getattr(entry, "__qualname__", "entry")
    try:
        begun = exporter.begin_entry(BeginEntry(name, task))
    except (OSError, ValueError) as error:
        COUNTS.add(ENTRY_DENIED)
        warn(f"{name}() gets no rollout of its own: {error}")
        return None
    settings = replace(settings, **asdict(begun), task=task)
    context = settings.context(partial(exporter.span, begun.key))
    if undecorated(entry) is not entry:  # a reward function scores it
        context.entry_reward = []
    return EntryRollout(exporter, begun.key, context)


class EntryRollout(CallHooks):
    """One call of an entry, in an attempt of its own."""

    def __init__(self, exporter: SpanExporter, key: str, context: AttemptContext) -> None:
        self._exporter, self._key, self._context = exporter, key, context
        self._ended = False
        self._last: Any = None

    def activate(self) -> AbstractContextManager[Any]:
        """Run the block in the entry's attempt."""
        return attempt_context(self._context)

    def on_item(self, item: Any) -> None:
        self._last = item

    def on_return(self, value: Any) -> None:
        self.end(value)

    @contextmanager
    def around(self) -> Iterator[None]:
        """Report an error of the entry. A stream that is not read to its end returns its last item."""
        try:
            yield
        except GeneratorExit:
            self.end(self._last)
            raise
        except BaseException as error:
            self.end(error=describe_error(error))
            raise

    def end(self, result: Any = None, *, error: str | None = None) -> None:
        """Report that the entry returned or raised. A number that it returned is the reward."""
        if self._ended:
            return
        self._ended = True
        if error is None and self._context.errors:
            error = describe_error(self._context.errors[0])
        end_attempt(self._context.attempt_id)
        result = next(iter(self._context.entry_reward or ()), result)
        try:
            end = EndEntry(reward=_reward_number(result), error=error)
            self._exporter.end_entry(self._context.attempt_id, self._key, end)
        except (OSError, ValueError) as failed:
            COUNTS.add("entry-end-lost")
            warn(f"the end of attempt {self._context.attempt_id} is not on record: {failed}")


def _reward_number(result: Any) -> float | None:
    """Return the number that an entry returned, also from a scalar of an array library; ``None`` for other
    values. A number that is not finite is returned too, and fails the rollout as ``bad-reward``.
    """
    try:
        result = unwrap_scalar(result)
        return float(result) if isinstance(result, Real) else None
    except OverflowError:
        return math.inf
    except Exception:  # the object cannot be read as a number
        return math.nan


def _call_arguments(entry: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments of a call without ``self``: a single argument as it is, several by name."""
    try:
        given = dict(inspect.signature(entry).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # the call itself raises this error
        return None
    first = next(iter(given), None)
    if first in ("self", "cls"):
        del given[first]
    return jsonable(next(iter(given.values())) if len(given) == 1 else given)
