"""HTTP connections to ``agl run`` that tolerate programs which close open files, as daemons do.

Invariant: a file descriptor that belongs to another file by now is neither written to nor closed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

WRITE_SECONDS = 10.0
"""Seconds that a write may wait for ``agl run``."""
Headers = dict[str, str]


class Connection:
    """A connection to the server at ``url``, made when it is needed. Errors are ``OSError``. After an error
    or an interrupt the connection is closed.
    """

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._http = HTTPConnection(place.hostname or "", place.port, timeout=WRITE_SECONDS)
        self._inode: tuple[int, int] | None = None

    @property
    def open(self) -> bool:
        """Whether there is a connection that is still ours."""
        return self._inode is not None and _inode(self._http.sock) == self._inode

    def begin(self, path: str, headers: Headers) -> None:
        """Begin a request whose body is sent by :meth:`chunk`."""
        with self._closed_on_error():
            self._connect()
            self._http.putrequest("POST", path)
            for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
                self._http.putheader(name, value)
            self._http.endheaders()

    def chunk(self, data: bytes) -> None:
        """Write a part of the body. The last part is empty."""
        with self._closed_on_error():  # half of it may be sent: the next part needs a new connection
            self._http.send(b"%x\r\n%b\r\n" % (len(data), data))

    def answered(self) -> bool:
        """Return whether the server has answered already, or has closed the connection."""
        assert self._http.sock is not None
        self._http.sock.settimeout(0)
        try:
            self._http.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self._http.sock.settimeout(WRITE_SECONDS)
        return True

    def answer(self, seconds: float) -> tuple[int, bytes]:
        """Wait for the answer, and return its status and body."""
        assert self._http.sock is not None
        with self._closed_on_error():
            self._http.sock.settimeout(seconds)
            try:
                found = self._http.getresponse()
                return found.status, found.read()
            except HTTPException as error:
                name = type(error).__name__
                raise ConnectionResetError(f"agl run closed the connection ({name})") from None

    def close(self) -> None:
        """Close the connection, or leave its file descriptor alone if another file has it by now."""
        if self._http.sock is not None and not self.open:
            self._http.sock.detach()
        self._http.close()
        self._inode = None

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        self.close()
        self._http.connect()
        self._inode = _inode(self._http.sock)


def _inode(connection: socket.socket | None) -> tuple[int, int] | None:
    """Return device and inode of the connection's file descriptor, or ``None`` if it is closed."""
    if connection is None:
        return None
    try:
        found = os.fstat(connection.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino
