"""HTTP connections to ``agl run`` that survive what programs do to open files.

Invariant: a file descriptor that is another file's by now (the program closed ours, as daemons do) is neither
written to nor closed.
"""

from __future__ import annotations

import os
import socket
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

WRITE_SECONDS = 10.0
"""Seconds that a write may wait for ``agl run``."""
Headers = dict[str, str]


class Connection:
    """A connection to the server at ``url``, made when it is needed. Errors are ``OSError``; after one, and
    after an interrupt, the connection is closed.
    """

    def __init__(self, url: str) -> None:
        place = urlsplit(url)
        self._http = HTTPConnection(place.hostname or "", place.port, timeout=WRITE_SECONDS)
        self._inode: tuple[int, int] | None = None

    @property
    def open(self) -> bool:
        """There is a connection, and it is ours."""
        return self._inode is not None and _inode(self._http.sock) == self._inode

    def ask(self, path: str, body: bytes, headers: Headers, seconds: float) -> tuple[int, bytes]:
        """Send one request; status and body of its answer."""
        try:
            self._connect()
            self._http.request("POST", path, body, headers)
            return self.answer(seconds)
        finally:
            self.close()

    def begin(self, path: str, headers: Headers) -> None:
        """Begin a request whose body is still to come, in :meth:`chunk`."""
        try:
            self._connect()
            self._http.putrequest("POST", path)
            for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
                self._http.putheader(name, value)
            self._http.endheaders()
        except BaseException:
            self.close()
            raise

    def chunk(self, data: bytes) -> None:
        """Write a part of the body; the last one is empty."""
        try:
            self._http.send(b"%x\r\n%b\r\n" % (len(data), data))
        except BaseException:  # half of it may be out: what comes next needs a connection of its own
            self.close()
            raise

    def answered(self) -> bool:
        """The server has answered already, or has hung up."""
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
        """Wait for the answer: its status and body."""
        assert self._http.sock is not None
        try:
            self._http.sock.settimeout(seconds)
            found = self._http.getresponse()
            return found.status, found.read()
        except HTTPException as error:
            self.close()
            raise ConnectionResetError(f"agl run closed the connection ({type(error).__name__})") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the connection."""
        if self._http.sock is not None and not self.open:
            self._http.sock.detach()
        self._http.close()
        self._inode = None

    def _connect(self) -> None:
        self.close()
        self._http.connect()
        self._inode = _inode(self._http.sock)


def _inode(connection: socket.socket | None) -> tuple[int, int] | None:
    """What the kernel has under the connection's number; ``None``: nothing."""
    if connection is None:
        return None
    try:
        found = os.fstat(connection.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino
