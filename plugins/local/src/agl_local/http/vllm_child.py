"""vLLM behind a door, as a child of ``vllm_engine``: ``PYTHON -P vllm_child.py --model FOLDER …``.

It runs by the interpreter that has vLLM, where nothing of the suite is installed: this file imports the
standard library and vLLM alone. The key comes as the first line of standard input; the process, and all that
vLLM begins, ends with it, or with its parent.

Invariants: who has not the key reaches /health and /metrics alone; between ``POST /agl/close`` and ``POST
/agl/open`` no call is inside vLLM, and those that come wait; every answer says by which weights it was
sampled, in the field ``policy_version``, and none by two.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

OPEN = ("/health", "/metrics")
CALLS = ("/v1/chat/completions", "/v1/completions")
"""What samples from the policy. The gateway translates every other API to these."""
GRACE = 8.0
"""Seconds that vLLM has to end when its parent has."""
_EVENT = re.compile(rb"^data: \{", re.MULTILINE)


class Door:
    """Middleware of vLLM's server (``--middleware __main__.Door``)."""

    key = ""

    def __init__(self, app: App) -> None:
        self._app = app
        self._version = 0
        self._inside = 0
        self._open, self._idle = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._idle.set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope.get("path")
        if scope["type"] == "lifespan" or (scope["type"] == "http" and path in OPEN):
            await self._app(scope, receive, send)
        elif scope["type"] != "http" or not self._knows(scope):
            if scope["type"] == "http":  # a WebSocket that is not accepted is refused
                await _answer(send, 401, {"error": {"message": "the API key is missing or wrong"}})
        elif path == "/agl/close":
            self._open.clear()
            await self._idle.wait()
            await _answer(send, 200, {})
        elif path == "/agl/open":
            for version in parse_qs(scope["query_string"].decode()).get("version", ()):
                self._version = int(version)
            self._open.set()
            await _answer(send, 200, {"version": self._version})
        elif path in CALLS:
            await self._call(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _knows(self, scope: Message) -> bool:
        given = dict(scope["headers"]).get(b"authorization", b"")
        return bool(self.key) and hmac.compare_digest(given, f"Bearer {self.key}".encode())

    async def _call(self, scope: Message, receive: Receive, send: Send) -> None:
        while not self._open.is_set():  # it may have been closed again before this call's turn came
            await self._open.wait()
        self._inside += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, Marked(send, self._version))
        finally:
            self._inside -= 1
            if not self._inside:
                self._idle.set()


class Marked:
    """Sends an answer on with ``policy_version`` as the first field of its JSON object, or of each that it
    streams. Errors are left as they are.
    """

    def __init__(self, send: Send, version: int) -> None:
        self._send = send
        self._mark = b'{"policy_version":%d,' % version
        self._head: Message | None = None
        """The beginning of a whole answer, until its length is known."""
        self._streams = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._streams = kind.startswith(b"text/event-stream")
            if kind.startswith(b"application/json"):
                self._head = message
                return
        elif message["type"] == "http.response.body":
            if self._streams:
                message["body"] = _EVENT.sub(b"data: " + self._mark, message.get("body", b""))
            elif (head := self._head) is not None:
                self._head = None
                message["body"] = message["body"].replace(b"{", self._mark, 1)
                head["headers"] = [
                    (name, b"%d" % (int(value) + len(self._mark) - 1) if name == b"content-length" else value)
                    for name, value in head["headers"]
                ]
                await self._send(head)
        await self._send(message)


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


def end_with(parent: int) -> None:
    """Wait until standard input ends, or the parent is another one; then end this process and its group."""
    closed = threading.Event()

    def wait_for_end() -> None:
        while os.read(0, 1024):
            pass
        closed.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    while not closed.wait(timeout=1.0) and os.getppid() == parent:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Read the key, and be vLLM's server with the arguments of this process."""
    with open(0, "rb", buffering=0, closefd=False) as given:  # unbuffered: a thread reads on
        Door.key = given.readline().decode().strip()
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    try:
        from vllm.entrypoints.launchers.api_server.entry import main as serve  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("vllm"):
            raise
        sys.exit(
            f"{sys.executable} has no {error.name}: name an interpreter with vLLM 0.32 as "
            "backend.options.vllm.python"
        )
    serve()


if __name__ == "__main__":
    main()
