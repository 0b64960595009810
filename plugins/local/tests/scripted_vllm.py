"""Stands for vLLM where it is not installed: its ASGI app behind the same door, by the same flags.

It loads the weights that it is told to load, and answers with their sum in place of a text. All that it was
asked is in ``/asked``, its command line and environment in ``/started``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from safetensors import safe_open


class App:
    """An ASGI app; ``weights``: sums by file name."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.weights: dict[str, float] = {}
        self.adapters: dict[str, str] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = (await receive())["body"]
        body = json.loads(raw) if raw else None
        path = scope["path"] + (f"?{scope['query_string'].decode()}" if scope["query_string"] else "")
        if path not in ("/health", "/asked", "/started"):
            self.asked.append((path, body))
        status, said = self.answer(scope["path"], body)
        content = said if isinstance(said, bytes) else json.dumps(said).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        name = path.strip("/").replace("/", "_")
        return (getattr(self, name, None) or (lambda _: (200, {})))(body)

    def started(self, _: Any) -> tuple[int, Any]:
        return 200, {"argv": sys.argv[1:], "environment": dict(os.environ)}

    def v1_completions(self, body: Any) -> tuple[int, Any]:
        return 200, {"model": body["model"], "weights": self.weights, "adapters": self.adapters}

    def collective_rpc(self, body: Any) -> tuple[int, Any]:
        if body["method"] == "reload_weights":
            return self.load(Path(body["kwargs"]["weights_path"]))
        return 200, {"results": [None]}

    def v1_load_lora_adapter(self, body: Any) -> tuple[int, Any]:
        if body["lora_name"] in self.adapters:
            return 400, {"error": {"message": "has already been loaded"}}
        folder = Path(body["lora_path"])
        self.adapters[body["lora_name"]] = (folder / "adapter_config.json").read_text()
        return self.load(folder)[0], b"Success"

    def v1_unload_lora_adapter(self, body: Any) -> tuple[int, Any]:
        del self.adapters[body["lora_name"]]
        return 200, b"Success"

    def load(self, folder: Path) -> tuple[int, Any]:
        self.weights = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="np") as content:
                sums = {name: float(content.get_tensor(name).sum()) for name in content.keys()}  # noqa: SIM118
            if any(value != value for value in sums.values()):
                return 500, {"error": {"message": f"{file.name} is no number"}}
            self.weights |= sums
        return 200, {"results": [None]}

    def reset_prefix_cache(self, _: Any) -> tuple[int, Any]:
        return 200, {"success": "nothing" not in self.weights}

    def v1_die(self, _: Any) -> tuple[int, Any]:
        print("the cause of its death", file=sys.stderr, flush=True)
        os._exit(3)


def flag(name: str) -> str:
    """The value of a flag of this process."""
    return sys.argv[sys.argv.index(name) + 1]


def hosted(app: Callable[..., Any], own: App) -> web.Application:
    """aiohttp in the place of uvicorn; ``app`` is ``own`` behind its middleware."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/asked":
            return web.json_response(own.asked)
        body, sent = await request.read(), []
        url = urlsplit(str(request.url))
        scope = {
            "type": "http", "path": url.path, "query_string": url.query.encode(),
            "headers": [(k.lower(), v) for k, v in request.raw_headers],
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await app(scope, receive, send)
        head = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        said = b"".join(message["body"] for message in sent[1:])
        assert int(head.pop("content-length", len(said))) == len(said)
        return web.Response(status=sent[0]["status"], headers=head, body=said)

    made = web.Application()
    made.router.add_route("*", "/{path:.*}", handle)
    return made


def main() -> None:
    """In the place of vLLM's own."""
    module, _, name = flag("--middleware").rpartition(".")
    own = App()
    app = getattr(importlib.import_module(module), name)(own)

    async def serve() -> None:
        runner = web.AppRunner(hosted(app, own))
        await runner.setup()
        await web.TCPSite(runner, flag("--host"), int(flag("--port"))).start()
        await asyncio.Event().wait()

    asyncio.run(serve())
