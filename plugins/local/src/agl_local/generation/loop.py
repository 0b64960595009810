"""The loop in which engines compute, in a thread. An engine has one of its own, or shares it with others.

Those that share one compute in turn, a step each: every thread that computes in parallel keeps a pool of
threads of its own, and pools that are more than the cores slow each other down (``network.pool``).
Invariants: an engine computes in this thread alone; each that has joined is abandoned once, however the
thread ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import torch

from agl_local.generation.request import EngineError
from agl_local.network.pool import start_thread


class InLoop(Protocol):
    """An engine, as its loop sees it."""

    @property
    def closed(self) -> bool:
        """Whether it has left. Asked while ``EngineLoop.wake`` is held."""

    def has_work(self) -> bool:
        """Whether a step would do something. Asked while ``EngineLoop.wake`` is held."""

    def step(self) -> None:
        """One step."""

    def abandon(self, reason: str) -> None:
        """Its last call from the thread: what still waits fails."""


class EngineLoop:
    """A thread that begins with the first of its engines and ends with the last. ``threads``: cores for torch
    in it (None: as torch is set).
    """

    def __init__(self, name: str, threads: int | None = None) -> None:
        self.wake = threading.Condition()
        """The lock of all its engines' queues; notified where one of them may have something to do."""
        self.thread: threading.Thread | None = None
        """None while nobody computes."""
        self._name, self._threads = name, threads
        self._members: list[InLoop] = []
        self._arrivals: list[tuple[InLoop, Callable[[], None], Future[None]]] = []

    def join(self, member: InLoop, first: Callable[[], None]) -> None:
        """Let ``member`` step from now on. ``first`` runs in the thread before: what it raises is
        raised here, and the member has not joined.
        """
        joined: Future[None] = Future()
        with self.wake:
            if self.thread is None:
                self.thread = start_thread(self._main, self._name, self._threads)
            self._arrivals.append((member, first, joined))
            self.wake.notify()
        joined.result()

    def _main(self) -> None:
        try:
            with torch.inference_mode():
                while (ready := self._wait()) is not None:
                    for member in ready:
                        member.step()
        except BaseException as error:
            self._fail(f"its thread failed: {error!r}")
            raise

    def _fail(self, reason: str) -> None:
        with self.wake:
            left, self._members = self._members, []
            arrivals, self._arrivals = self._arrivals, []
            self.thread = None
        for member in left:
            member.abandon(reason)
        for _, _, joined in arrivals:
            joined.set_exception(EngineError(reason))

    def _wait(self) -> list[InLoop] | None:
        """Sleep until somebody has something to do, or comes or goes; those with something to do, None once
        all are gone.
        """
        with self.wake:
            self.wake.wait_for(self._stirs)
            arrivals, self._arrivals = self._arrivals, []
            gone = [member for member in self._members if member.closed]
            self._members = [member for member in self._members if not member.closed]
        for arrival in arrivals:
            self._admit(*arrival)
        with self.wake:
            over = not self._members and not self._arrivals
            if over:
                self.thread = None
            ready = [one for one in self._members if not one.closed and one.has_work()]
        for member in gone:
            member.abandon("it was closed")
        return None if over else ready

    def _stirs(self) -> bool:
        return bool(self._arrivals) or any(one.closed or one.has_work() for one in self._members)

    def _admit(self, member: InLoop, first: Callable[[], None], joined: Future[None]) -> None:
        try:
            first()
        except BaseException as error:
            joined.set_exception(error)
            return
        self._members.append(member)
        joined.set_result(None)
