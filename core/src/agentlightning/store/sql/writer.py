"""How the store's work reaches its database: transactions that are committed before a caller is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_in_batch: ContextVar[bool] = ContextVar("in_batch", default=False)


@dataclass(frozen=True, slots=True)
class Touched:
    """What a write is going to change, as far as its parameters tell."""

    rollout_ids: frozenset[str] = frozenset()
    attempt_ids: frozenset[str] = frozenset()

    @classmethod
    def by(cls, parameters: Mapping[str, Any]) -> Touched:
        """Return what a method of the store with these parameters is going to change."""
        rollouts, attempts = set(parameters.get("rollout_ids") or ()), parameters.get("attempt_ids") or ()
        for name in ("spans", "returned", "calls", "rescored"):
            rollouts.update(one.rollout_id for one in parameters.get(name) or ())
        rollouts.update(rollout_id for rollout_id, _ in parameters.get("attempts") or ())
        if isinstance(known := parameters.get("rollout_id"), str):
            rollouts.add(known)
        return cls(frozenset(rollouts), frozenset(attempts))

    def __or__(self, other: Touched) -> Touched:
        return Touched(self.rollout_ids | other.rollout_ids, self.attempt_ids | other.attempt_ids)


def nothing() -> Touched:
    """Return what a write touches that names no rollout."""
    return Touched()


async def pause() -> None:
    """Let other requests go on. Within a batch, which may not wait, this does nothing."""
    if not _in_batch.get():
        await asyncio.sleep(0)


class PartialWrite(Exception):
    """A call of a batch failed after it had changed something."""


class Writer(Protocol):
    """Runs reads and writes of a store, each in a transaction.

    Work is a function of the tables, safe to run twice: a transaction that fails with others in it is run
    again without the one that failed.
    """

    closed: bool
    """Whether the store was closed."""

    async def write(self, work: Callable[[], T], touched: Callable[[], Touched] = nothing) -> T:
        """Run ``work`` in a transaction; return its result after the commit. A database with many writers
        locks what is ``touched`` first.
        """

    async def read(self, work: Callable[[], T]) -> T:
        """Run queries that see one state of the tables; return their result."""

    def write_batch(
        self, coroutines: Sequence[Callable[[], Coroutine[Any, Any, Any]]], savepoints: bool
    ) -> list[Any]:
        """Run coroutines in order, within one write. Return a result or an exception each.

        No coroutine may wait. If one fails after a change, :class:`PartialWrite` rolls all of them back. The
        caller runs them again with ``savepoints``, one for each coroutine, which cost too much for the usual
        case.
        """

    async def on_writer_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await a coroutine on the event loop that waits for this store's signals."""


def run_to_end(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine of a batch, which may not wait; return its result or its exception."""
    within = _in_batch.set(True)
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    except PartialWrite:
        raise
    except Exception as error:
        return error
    finally:
        _in_batch.reset(within)
    coroutine.close()
    raise RuntimeError("a part of a batch waited")
