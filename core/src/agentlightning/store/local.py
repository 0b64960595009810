"""A store file that several processes of one machine have open: one owns it, the others are its clients.

:class:`LocalStore` is what ``open_store`` makes of a file. The process that gets the file's lock owns it,
works on it directly and answers the others on a local socket (see :mod:`.share`), from its first request on.
The others send their requests there. When the owner closes the file or dies, the first client that notices
takes the lock and is the owner; the others find its socket. A request that was under way is sent again with
its request id, so it is done once.

Invariant: a process that works on the file holds its lock, until it closes the store or ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from agentlightning.store.base import StoreError
from agentlightning.store.http.client import StoreClient
from agentlightning.store.http.transport import BatchCall, Request, new_request_id
from agentlightning.store.routes import BY_NAME
from agentlightning.store.share import SharedSocket, try_to_share
from agentlightning.store.sqlite.lock import Locked, owner_of
from agentlightning.store.sqlite.store import SQLiteStore

_log = logging.getLogger(__name__)
_SHARED_WITHIN = 5.0
"""Seconds an owner that shares the file may take to say where."""


_NOWHERE = "http://127.0.0.1:0"
"""The owner has not said yet where it answers."""


class _Promoted(Exception):
    """The owner is gone and we own the file: the request is ours to do."""


class LocalStore(StoreClient):
    """All of :class:`~agentlightning.store.base.Store`, in the file ``path``, which this process owns or
    whose owner it asks.

    ``synchronous``: as of :class:`~agentlightning.store.sqlite.store.SQLiteStore`, whenever this process owns
    the file. ``patience``: seconds to keep trying while the owner does not answer.
    """

    _max_pause = 0.25
    _seconds_before_warning = 1.0

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Literal["NORMAL", "FULL"] = "NORMAL",
        patience: float | None = None,
    ) -> None:
        self.path = path.expanduser().absolute()
        self._synchronous = synchronous
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        self._own: SQLiteStore | None = None
        self._inherited: list[Any] = []
        self._home: asyncio.AbstractEventLoop | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._share: SharedSocket | None = None
        self._aimed: tuple[str, str | None] | None = None
        self._closed = False
        super().__init__(_NOWHERE, patience=patience)
        self._try_to_own()

    def __repr__(self) -> str:
        return f"LocalStore({str(self.path)!r})"

    @property
    def owned(self) -> SQLiteStore | None:
        """The file itself, if this process owns it."""
        return self._own if self._pid == os.getpid() else None

    # -- one request
    async def _call(self, name: str, /, **parameters: Any) -> Any:
        own = self._ready()
        if own is None:
            if BY_NAME[name].mutates and parameters.get("request_id") is None:
                parameters["request_id"] = new_request_id()
            try:
                return await super()._call(name, **parameters)
            except _Promoted:
                own = self._ready()
                assert own is not None
        return await getattr(own, name)(**parameters)

    async def batch(
        self, calls: Sequence[BatchCall | tuple[str, dict[str, Any]]], *, request_id: str | None = None
    ) -> list[Any]:
        """Several calls in one commit, done in order; see :meth:`.Transport.batch`."""
        own = self._ready()
        if own is None:
            request_id = request_id or new_request_id()
            try:
                return await super().batch(calls, request_id=request_id)
            except _Promoted:
                own = self._ready()
                assert own is not None
        return await own.batch([(method, params) for method, params in calls], request_id=request_id)

    def _ready(self) -> SQLiteStore | None:
        """The file, if we own it, shared from this loop or another that runs."""
        if self._closed:
            raise StoreError("the store is closed")
        if self._pid != os.getpid():
            self._leave_to_parent()
        if self._own is not None and self._home is not (here := asyncio.get_running_loop()):
            self._answer_others(here)
        return self._own

    def _leave_to_parent(self) -> None:
        """We were forked: what our parent has open stays its own, unclosed, and we are its client."""
        self._inherited += [self._own, self._session, self._keeper, self._share, self._home]
        self._own = self._session = self._keeper = self._share = self._home = None
        self._mutex, self._pid = threading.RLock(), os.getpid()
        self._look()

    # -- who owns the file
    def _try_to_own(self) -> bool:
        """Take the file if nobody has it; else note where its owner answers."""
        with self._mutex:
            if self._own is None:
                try:
                    self._own = SQLiteStore(self.path, synchronous=self._synchronous)
                except Locked:
                    self._look()
            return self._own is not None

    def _look(self) -> None:
        owner = owner_of(self.path)
        if owner.address is not None and (owner.address, owner.token) != self._aimed:
            session, self._session = self._session, None
            if session is not None and self._loop is asyncio.get_running_loop():
                asyncio.ensure_future(session.close()).add_done_callback(lambda _: None)
            self._set_server(owner.address, owner.token)
            self._aimed = owner.address, owner.token

    async def _send_once(self, r: Request) -> Any:
        if self.url == _NOWHERE:
            raise ConnectionError("its owner has not said yet where it answers")
        return await super()._send_once(r)

    async def _on_connection_error(self, error: Exception, seconds: float) -> None:
        if self._closed:
            raise StoreError("the store is closed") from error
        if self._try_to_own():
            _log.info("the owner of %s is gone; this process owns it from here on", self.path)
            raise _Promoted
        owner = owner_of(self.path)
        if owner.address is None and seconds > min(_SHARED_WITHIN, self.patience):
            raise Locked(self.path, owner) from error
        await super()._on_connection_error(error, seconds)

    def _advice(self) -> str:
        pid = owner_of(self.path).pid
        return f"Process {pid} owns the file and is busy or stopped: wait for it, or end it"

    # -- answering others
    def _answer_others(self, here: asyncio.AbstractEventLoop) -> None:
        with self._mutex:
            if self._home is not None and self._home.is_running():
                return
            if self._share is not None:
                self._share.abandon()
            self._home = here
            self._keeper = here.create_task(self._keep(), name=f"share {self.path.name}")

    async def _keep(self) -> None:
        """Answer other processes until cancelled: when the store is closed, or the loop ends."""
        assert self._own is not None
        share = self._share = await try_to_share(self._own)
        if share is None:
            return
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await share.close()
            raise
        except GeneratorExit:  # its loop stopped without an end and was forgotten: nothing can be awaited
            share.abandon()
            raise
        finally:
            if self._share is share:
                self._share = None

    async def close(self) -> None:
        """As a client, close the connections; as the owner, commit and let the next process own the file."""
        if self._closed:
            return
        self._closed = True
        await super().close()
        own = self.owned
        if own is not None:
            await self._stop_answering(own)
            await own.close()

    async def _stop_answering(self, own: SQLiteStore) -> None:
        home, keeper = self._home, self._keeper
        if home is None or keeper is None or keeper.done():
            return

        async def stop() -> None:
            own.waiters.wake_all()
            keeper.cancel()
            await asyncio.wait([keeper])

        if home is asyncio.get_running_loop():
            await stop()
        elif home.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(stop(), home))
        elif self._share is not None:
            self._share.abandon()


def open_file(place: str | Path | None = None) -> LocalStore | SQLiteStore:
    """The store in a file or folder, shared between the processes that open it; or in memory."""
    from agentlightning.store.sqlite.store import store_file

    path = store_file(place)
    return SQLiteStore(path) if isinstance(path, str) else LocalStore(path)
