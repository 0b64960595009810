"""A server that answers as the Hugging Face hub does, for the real ``huggingface_hub``.

Source: the routes and headers that huggingface_hub reads (``HfApi.model_info``, ``hf_hub_download``). Files
in large file storage are redirected to another host, as the hub redirects to its content network.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """``models``: id → file name → content. ``sent`` replaces what is sent for a file's name, ``breaks`` says
    how often its connection breaks off in the middle, ``half`` is waited for in the middle of large files,
    ``gated`` names models.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, dict[str, bytes]] = {}
        self.sent: dict[str, bytes] = {}
        self.breaks: Counter[str] = Counter()
        self.half: threading.Event | None = None
        self.gated: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: Any) -> None:
        """A client may leave early."""


def large(name: str) -> bool:
    """Whether the hub keeps a file in large file storage."""
    return name.endswith((".safetensors", ".gguf"))


@contextmanager
def hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in few packets,
    disable_nagle_algorithm = True  # and none waits for another

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append((self.command, path))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            self._info(found[1])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/storage/([^/]+/[^/]+)/(.+)", path):
            self._content(found[2], self.server.models[found[1]][found[2]], {})
        else:
            self._send(404, b"")

    def _info(self, model: str) -> None:
        if model in self.server.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
        elif model not in self.server.models:
            self._send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        else:
            files = [_sibling(*one) for one in self.server.models[model].items()]
            body = {
                "id": model,
                "modelId": model,
                "sha": COMMIT,
                "siblings": files,
                "tags": [],
                "private": False,
            }
            self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(self, model: str, revision: str, name: str) -> None:
        content = self.server.models.get(model, {}).get(name)
        if content is None or revision != COMMIT:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        if not large(name):
            self._content(name, content, {"ETag": f'"{git_id(content)}"', "X-Repo-Commit": COMMIT})
            return
        sha256 = hashlib.sha256(content).hexdigest()
        linked = {"X-Linked-ETag": f'"{sha256}"', "X-Linked-Size": str(len(content)), "X-Repo-Commit": COMMIT}
        self._send(
            302,
            b"",
            {**linked, "Location": f"http://localhost:{self.server.server_port}/storage/{model}/{name}"},
        )

    def _content(self, name: str, content: bytes, headers: dict[str, str]) -> None:
        content = self.server.sent.get(name, content)
        start = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[1])  # type: ignore[index]
        if start:
            headers = {**headers, "Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        broken = self.command == "GET" and self.server.breaks[name] > 0
        self.server.breaks[name] -= broken
        self._send(206 if start else 200, content[start:], headers, broken)

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, broken: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        middle = len(body) // 2
        self.wfile.write(body[:middle])
        self.wfile.flush()
        if self.server.half is not None and self.path.startswith("/storage/"):
            self.server.half.wait(5)
        if broken:
            self.close_connection = True
            return
        self.wfile.write(body[middle:])


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_id(content)}
    if large(name):
        pointer = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        found |= {"blobId": "of the pointer", "lfs": pointer}
    return found


def git_id(content: bytes) -> str:
    """What ``git hash-object`` prints."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
