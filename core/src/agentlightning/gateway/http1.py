"""The answers of engines as HTTP/1.1 messages: head, and how the body's end is found.

Source: RFC 9112. Invariant: a body ends where its framing says, or with an error; never early, never late.
"""

from __future__ import annotations

from typing import Protocol

HEAD_LIMIT = 65_536
"""Bytes of an answer's head, and of a line between chunks."""


class BadHttp(Exception):
    """What came is not HTTP/1.1 as RFC 9112 has it; the message says where."""


class Head:
    """Status and headers (names in lower case) of an answer."""

    __slots__ = ("headers", "keeps", "length", "status")

    def __init__(self, raw: bytes) -> None:
        top, *lines = raw.decode("latin-1").split("\r\n")
        version, _, rest = top.partition(" ")
        if version not in ("HTTP/1.1", "HTTP/1.0") or not (rest[:3].isascii() and rest[:3].isdigit()):
            raise BadHttp(f"the answer begins with {top[:80]!r}")
        self.status = int(rest[:3])
        self.headers: dict[str, str] = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise BadHttp(f"header line {line[:80]!r}")
            name, value = name.lower(), value.strip()
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.length = self._length()
        """Bytes of the body, where the head says so."""
        self.keeps = version == "HTTP/1.1" and "close" not in self.headers.get("connection", "").lower()
        """The connection stays open."""

    @property
    def content_type(self) -> str:
        """Media type without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def framing(self) -> Framing:
        """How the body's end is found."""
        coding = self.headers.get("content-encoding", "identity").lower()
        if coding != "identity":
            raise BadHttp(f"content-encoding {coding[:80]!r}, though identity was asked for")
        if self.status in (204, 304):
            return Sized(0)
        if (transfer := self.headers.get("transfer-encoding")) is not None:
            if transfer.lower() != "chunked":
                raise BadHttp(f"transfer-encoding {transfer[:80]!r}")
            return Chunked()
        return Unsized() if self.length is None else Sized(self.length)

    def _length(self) -> int | None:
        value = self.headers.get("content-length")
        if value is None or "transfer-encoding" in self.headers:
            return None
        if not (value.isascii() and value.isdigit()):
            raise BadHttp(f"content-length {value[:80]!r}")
        return int(value)


class Framing(Protocol):
    """Finds the end of one body."""

    done: bool

    def feed(self, data: bytes) -> bytes:
        """The body's bytes in ``data``."""

    def close(self) -> None:
        """The connection closed: sets ``done`` where that ends the body."""


class Sized:
    """A body of known length."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = not length

    def feed(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise BadHttp("more bytes came than the content-length says")
        self.done = not self._left
        return data

    def close(self) -> None:
        pass


class Unsized:
    """A body that ends with its connection."""

    done = False

    def feed(self, data: bytes) -> bytes:
        return data

    def close(self) -> None:
        self.done = True


class Chunked:
    """A body in chunks; extensions and trailers are passed over."""

    def __init__(self) -> None:
        self._rest = b""
        self._left = 0
        self._closing = False
        """The line that closes a chunk is next."""
        self._trailing = False
        self.done = False

    def feed(self, data: bytes) -> bytes:
        if self.done:
            raise BadHttp("bytes came after the last chunk")
        if self._rest:
            data, self._rest = self._rest + data, b""
        out: list[bytes] = []
        at = 0
        while True:
            if self._left:
                piece = data[at : at + self._left]
                out.append(piece)
                at += len(piece)
                self._left -= len(piece)
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            last = self._line(data[at:end])
            at = end + 2
            if last and at < len(data):
                raise BadHttp("bytes came after the last chunk")
        self._rest = data[at:]
        if len(self._rest) > HEAD_LIMIT:
            raise BadHttp("a chunk's size line does not end")
        return b"".join(out)

    def _line(self, line: bytes) -> bool:
        """Take a line between chunks; whether the body ends with it."""
        if self._trailing:
            self.done = not line
        elif self._closing:
            if line:
                raise BadHttp("a chunk is longer than its size says")
            self._closing = False
        else:
            size = line.partition(b";")[0].strip()
            if not size or size.strip(b"0123456789abcdefABCDEF"):
                raise BadHttp(f"chunk size {line[:80]!r}")
            self._left = int(size, 16)
            self._closing, self._trailing = self._left > 0, self._left == 0
        return self.done

    def close(self) -> None:
        pass
