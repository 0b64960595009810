"""The owner of a store file lets other processes of its user in: the store's application on a local socket.

A Unix socket (see :mod:`.address`); where there are none, a loopback port that asks for a random token. Where
it is stands in the lock file, before it answers and until it has stopped.
"""

from __future__ import annotations

import logging
import secrets
import socket

from aiohttp import web

from agentlightning.store import address
from agentlightning.store.base import StoreError
from agentlightning.store.http.app import create_app, runner as runner_of
from agentlightning.store.sqlite.lock import FileLock
from agentlightning.store.sqlite.store import SQLiteStore

_log = logging.getLogger(__name__)


class SharedSocket:
    """A store on its local socket, from :func:`share` to :meth:`close`."""

    def __init__(self, runner: web.AppRunner, lock: FileLock, sock: socket.socket | None) -> None:
        self.runner, self.lock, self.sock = runner, lock, sock
        self.path = None if sock is None else str(sock.getsockname())
        self._withdrawn = False

    async def close(self) -> None:
        """Let nobody in any more and answer what is under way; the store stays open."""
        self._withdraw()
        await self.runner.cleanup()
        if self.sock is not None:
            self.sock.close()  # where it was never listened on

    def abandon(self) -> None:
        """Let nobody in any more, where the loop that answered has stopped."""
        self._withdraw()
        if self.sock is not None:
            self.sock.close()

    def _withdraw(self) -> None:
        """Take the address back, once: the next one announced is another's to withdraw.

        Only while the lock is held is the socket's file ours to remove.
        """
        withdrawn, self._withdrawn = self._withdrawn, True
        if self.lock.held and not withdrawn:
            address.remove(self.path)
            self.lock.announce(address=None, token=None)


async def share(store: SQLiteStore) -> SharedSocket | None:
    """Answer other processes on this loop; ``None`` for a store in memory, which nobody else can open."""
    lock, path = store.db.lock, store.db.path
    if lock is None or path is None:
        return None
    token = None if address.HAS_UNIX else secrets.token_hex(32)
    runner = runner_of(create_app(store, token, open_to_pages=True))
    sock = None
    try:
        await runner.setup()
        if token is None:
            sock = address.listen(path)
            lock.announce(address=address.UNIX + sock.getsockname())
            await web.SockSite(runner, sock).start()
        else:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            lock.announce(address=f"http://127.0.0.1:{port}", token=token)
    except BaseException:
        await SharedSocket(runner, lock, sock).close()
        raise
    return SharedSocket(runner, lock, sock)


async def try_to_share(store: SQLiteStore) -> SharedSocket | None:
    """The same; where no socket can be made this is said, and the store is this process's alone."""
    try:
        return await share(store)
    except (StoreError, OSError) as error:
        _log.warning("other processes cannot use %r while this one has it open: %s", store, error)
        return None
