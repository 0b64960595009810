"""What a web page may send to a server on this machine, and that the server refuses it: the same for store,
gateway and engine. Requests are bytes on a socket, for no client library would write them so.
"""

from __future__ import annotations

import asyncio
import re
from typing import NamedTuple
from urllib.parse import urlsplit


class Said(NamedTuple):
    """An answer, read to its end."""

    status: int
    body: bytes


async def send(url: str, request: bytes) -> Said:
    """Send bytes to the server of ``url`` and return its answer.

    After an answer that has a length nothing is waited for: a server that has refused a body reads on for
    seconds.
    """
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body = await (reader.readexactly(int(length[1])) if length else reader.read())
        return Said(int(head.split()[1]), body)
    finally:
        writer.close()


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """One request; the connection is closed after its answer."""
    told = {"Content-Length": str(len(body)), **headers, "Connection": "close"}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items() if value)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def from_pages(port: int) -> dict[str, tuple[dict[str, str], int]]:
    """Headers of requests that pages can cause, and the status they get."""
    own, json = f"127.0.0.1:{port}", {"Content-Type": "application/json"}
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return {
        "a name that was rebound": ({"Host": f"evil.example:{port}", **json}, 403),
        "a name that looks local": ({"Host": f"127.0.0.1.evil.example:{port}", **json}, 403),
        "a name with a user before it": ({"Host": f"localhost@evil.example:{port}", **json}, 403),
        "an address of the network": ({"Host": f"192.168.1.5:{port}", **json}, 403),
        "another origin": ({"Host": own, "Origin": "https://evil.example", **json}, 403),
        "an origin that hides": ({"Host": own, "Origin": "null", **json}, 403),
        "a page on another port": ({"Host": own, "Origin": "http://127.0.0.1:1", **json}, 403),
        "a rebound page of the same origin": (
            {"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}", **json},
            403,
        ),
        "a form": ({"Host": own, **form}, 415),
        "a form with files": ({"Host": own, "Content-Type": "multipart/form-data; boundary=x"}, 415),
        "plain text": ({"Host": own, "Content-Type": "text/plain; charset=application/json"}, 415),
        "a blob without a type": ({"Host": own}, 415),
    }


async def pages_are_refused(url: str, method: str, path: str, body: bytes) -> None:
    """Each of them is refused, and says why; a program's request with the same body is not (by the guard)."""
    port = urlsplit(url).port or 0
    for what, (headers, status) in from_pages(port).items():
        said = await send(url, request(method, path, headers, body))
        assert said.status == status, (what, said)
        assert b"Host" in said.body or b"web page" in said.body or b"Content-Type" in said.body, what


async def programs_are_served(url: str, method: str, path: str, body: bytes, **headers: str) -> None:
    """However a program names this machine, and from a page of the server's own."""
    port = urlsplit(url).port
    json = {"Content-Type": "application/json", **headers}
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LocalHost", f"[::1]:{port}", "127.0.0.1:9"):
        said = await send(url, request(method, path, {"Host": host, **json}, body))
        assert said.status == 200, (host, said)
    own = f"127.0.0.1:{port}"
    said = await send(url, request(method, path, {"Host": own, "Origin": f"http://{own}", **json}, body))
    assert said.status == 200, said
