"""What a recorded call costs at the gateway: CPU, rate and latency, each record durable before its answer.

    python bench/gateway.py                      # c = 1, 16, 64 for 8 s each, then streams of 200 chunks
    python bench/gateway.py --seconds 60         # sustained; watch rss_mib
    python bench/gateway.py --processes 1 2 3    # only several gateways of one run (bench/gateways.py)

Three processes: a cheap engine (one fixed answer with token ids, last prompt id counted up), the gateway on
a SQLite store in a temporary folder (64 open attempts, training mode), and this one, which makes the load.
CPU is the gateway process's own (user + system, record and commit included). A call is 2 kB of messages;
its answer 300 prompt ids, 200 token ids with logprobs. Streams: 32 at a time, a chunk every 4 ms.
``growing``: agents of 12 turns whose prompts grow to some 20,000 tokens (``bench/records.py``).
``agent_lightning`` is the gateway of Agent Lightning 1.0.2 under the same load, where it installs
(``bench/agent_lightning.py``).
``floor_c16`` is a bare aiohttp proxy that records nothing, measured in the same run. ``load_average`` says
how busy the machine was. Prints one JSON object; a call that was answered and not stored ends the run.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import agent_lightning
import gateways
import records

PROMPT, TOKENS, ATTEMPTS = 300, 200, 64
GROWING_TURNS, GROWING_ROLLOUTS = 12, 16
MARK = 987_654_321
"""The last prompt id, replaced by a counter in every answer, so that no two prompts are equal."""


# --------------------------------------------------------------------------------------------------- engine
def answer_parts() -> tuple[bytes, bytes]:
    """The whole answer, before and after the counter."""
    entries = [
        {"token": f" w{i % 97}", "logprob": -0.01 - i % 50 / 100, "bytes": None, "top_logprobs": []}
        for i in range(TOKENS)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "".join(e["token"] for e in entries), "tool_calls": []},
        "logprobs": {"content": entries},
        "finish_reason": "stop",
        "token_ids": [1000 + i * 37 % 90_000 for i in range(TOKENS)],
    }
    body = head() | {
        "object": "chat.completion",
        "choices": [choice],
        "usage": usage(),
        "prompt_token_ids": prompt(),
    }
    before, after = json.dumps(body).encode().split(str(MARK).encode())
    return before, after


def chunk_bytes() -> list[bytes]:
    """The streamed answer: opening, one chunk a token, closing, usage."""
    start = head() | {"object": "chat.completion.chunk"}
    items: list[dict[str, Any]] = [
        start
        | {
            "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
            "prompt_token_ids": prompt(),
        }
    ]
    for i in range(TOKENS):
        logprobs = {"content": [{"token": f" w{i % 97}", "logprob": -0.1}]}
        choice = {
            "index": 0,
            "delta": {"content": f" w{i % 97}"},
            "finish_reason": None,
            "token_ids": [1000 + i],
            "logprobs": logprobs,
        }
        items.append(start | {"choices": [choice]})
    items.append(start | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    items.append(start | {"choices": [], "usage": usage()})
    return [b"data: " + json.dumps(item).encode() + b"\n\n" for item in items] + [b"data: [DONE]\n\n"]


def head() -> dict[str, Any]:
    return {"id": "chatcmpl-bench", "created": 1_700_000_000, "model": "bench"}


def usage() -> dict[str, int]:
    return {"prompt_tokens": PROMPT, "completion_tokens": TOKENS, "total_tokens": PROMPT + TOKENS}


def prompt() -> list[int]:
    return [500 + i * 13 % 90_000 for i in range(PROMPT - 1)] + [MARK]


class EngineProtocol(asyncio.Protocol):
    """One connection; requests have a content-length, as the gateway's do."""

    whole = answer_parts()
    pieces = chunk_bytes()
    count = 0

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            low = self.buffer[:end].lower()
            length = int(low.split(b"content-length:")[1].split(b"\r\n")[0])
            if len(self.buffer) < end + 4 + length:
                return
            body, self.buffer = self.buffer[end + 4 : end + 4 + length], self.buffer[end + 4 + length :]
            self.answer(body)

    def answer(self, body: bytes) -> None:
        EngineProtocol.count += 1
        number = str(self.count).encode()
        if b'"stream":true' in body:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            self.piece(0, number)
            return
        raw = number.join(self.whole)
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(raw)
            + raw
        )

    def piece(self, place: int, number: bytes) -> None:
        if self.transport.is_closing():
            return
        data = self.pieces[place].replace(str(MARK).encode(), number) if place == 0 else self.pieces[place]
        last = place + 1 == len(self.pieces)
        self.transport.write(b"%x\r\n" % len(data) + data + b"\r\n" + (b"0\r\n\r\n" if last else b""))
        if not last:
            asyncio.get_running_loop().call_later(0.004, self.piece, place + 1, number)


async def serve_engine() -> None:
    server = await asyncio.get_running_loop().create_server(EngineProtocol, "127.0.0.1", 0, backlog=1024)
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"}), flush=True)
    await server.serve_forever()


# -------------------------------------------------------------------------------------------------- gateway
async def serve_gateway(engine: str, folder: str) -> None:
    """Serve until stdin closes; each line on stdin is answered with CPU seconds, memory and records."""
    from agentlightning.gateway import AttemptInfo, Gateway, SamplingPolicy, Upstream
    from agentlightning.keys import Keys
    from agentlightning.store import SQLiteStore

    file = Path(folder) / "store.sqlite"
    store = SQLiteStore(file)
    gateway = Gateway(store, Keys())
    gateway.add_route(Upstream(url=engine, model="bench", stream_ids=True))
    gateway.policy_sampling("default", SamplingPolicy())
    keys = []
    for i in range(ATTEMPTS):
        lease = await store.start_rollout({"i": i}, worker_id="bench")
        ids = {"rollout_id": lease.rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}
        keys.append(gateway.open_attempt(AttemptInfo(**ids, fence=lease.attempt.fence, seed=i)))
    used = lambda: {  # noqa: E731
        "stored": gateway.metrics.calls["ok"],
        "disk": sum(f.stat().st_size for f in Path(folder).iterdir()),
    }
    await reporting({"url": await gateway.start(), "keys": keys}, used)
    await gateway.stop()
    await store.close()


async def serve_floor(engine: str) -> None:
    """The least an aiohttp proxy can do: add a field, ask the engine, pass the bytes on; no record."""
    import aiohttp
    import msgspec
    from aiohttp import web

    calls = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal calls
        body = msgspec.json.decode(await request.read())
        sent = msgspec.json.encode({**body, "return_token_ids": True})
        headers = {"content-type": "application/json"}
        async with session.post(f"{engine}/chat/completions", data=sent, headers=headers) as response:
            raw = await response.read()
        calls += 1
        return web.Response(body=raw, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        await reporting({"url": url, "keys": ["none"]}, lambda: {"stored": calls, "disk": 0})


async def reporting(hello: dict[str, Any], more: Callable[[], dict[str, int]]) -> None:
    """Say where the server is; then answer each line on stdin with what it has used, until stdin closes."""
    print(json.dumps(hello), flush=True)
    while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(json.dumps({"cpu": used.ru_utime + used.ru_stime, "rss": rss_mib(), **more()}), flush=True)


def rss_mib() -> float:
    """Resident memory now (Linux), else the peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


# ----------------------------------------------------------------------------------------------------- load
class Client:
    """One keep-alive connection."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port, limit=2**22)

    async def call(self, raw: bytes) -> int:
        """Send a request, read its answer to the end; the status."""
        self.writer.write(raw)
        top = await self.reader.readuntil(b"\r\n\r\n")
        low = top.lower()
        if (at := low.find(b"content-length:")) >= 0:
            await self.reader.readexactly(int(low[at + 15 : low.find(b"\r", at)]))
        else:
            while size := int(await self.reader.readuntil(b"\r\n"), 16):
                await self.reader.readexactly(size + 2)
            await self.reader.readexactly(2)
        return int(top[9:12])


def requests(urls: list[str], keys: list[str], stream: bool) -> list[bytes]:
    filler = ("You are given a question and a set of tools. " * 50)[:2000]
    messages = [
        {"role": "system", "content": filler},
        {"role": "user", "content": "What is 17 * 23?"},
    ]
    body = json.dumps(
        {"model": "bench", "messages": messages, "temperature": 0.7, "max_tokens": 256, "stream": stream}
    ).encode()
    return [
        f"POST {urlsplit(url).path}/chat/completions HTTP/1.1\r\nhost: {urlsplit(url).netloc}\r\n"
        "content-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ntraceparent: 00-{'1' * 32}-{'2' * 16}-01\r\n"
        f"x-agl-tags: %7B%22agent%22%3A%22solver%22%7D\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
        for url, key in zip(urls, keys, strict=True)
    ]


async def load(
    urls: list[str], keys: list[str], concurrency: int, seconds: float, stream: bool = False
) -> dict[str, Any]:
    """Closed loop: each of ``concurrency`` clients calls again as soon as it is answered."""
    where = urlsplit(urls[0])
    assert where.hostname and where.port
    turn = itertools.cycle(requests(urls, keys, stream))
    clients = [Client(where.hostname, where.port) for _ in range(concurrency)]
    await asyncio.gather(*(c.open() for c in clients))
    times: list[float] = []
    began = time.perf_counter()

    async def run(client: Client) -> None:
        while time.perf_counter() - began < seconds:
            start = time.perf_counter()
            status = await client.call(next(turn))
            if status != 200:
                raise SystemExit(f"the gateway answered HTTP {status}")
            times.append(time.perf_counter() - start)

    await asyncio.gather(*(run(c) for c in clients))
    wall = time.perf_counter() - began
    for client in clients:
        client.writer.close()
    times.sort()
    at = lambda q: round(1000 * times[min(len(times) - 1, int(q * len(times)))], 2)  # noqa: E731
    return {"calls": len(times), "rps": round(len(times) / wall), "p50_ms": at(0.5), "p99_ms": at(0.99)}


class Child:
    """This file in another role."""

    def __init__(self, *args: str, script: str = __file__, command: Sequence[str] = ()) -> None:
        command = [*(command or [sys.executable, script]), *args]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
        )
        self.hello = self.read()

    def read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args} ended early")
        out: dict[str, Any] = json.loads(line)
        return out

    def ask(self) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()


def measure(gateway: Child, concurrency: int, seconds: float, stream: bool = False) -> dict[str, Any]:
    keys = gateway.hello["keys"]
    urls = gateway.hello.get("urls") or [gateway.hello["url"]] * len(keys)
    warm = asyncio.run(load(urls, keys, concurrency, 0.5, stream))
    before = gateway.ask()
    got = asyncio.run(load(urls, keys, concurrency, seconds, stream))
    after = gateway.ask()
    stored = after["stored"] - before["stored"]
    if stored != got["calls"]:
        raise SystemExit(f"{got['calls']} calls were answered, {stored} recorded")
    per_call = {
        "cpu_ms": round(1000 * (after["cpu"] - before["cpu"]) / got["calls"], 3),
        "disk_bytes": round((after["disk"] - before["disk"]) / got["calls"]),
        "rss_mib": [round(before["rss"], 1), round(after["rss"], 1)],
    }
    return got | per_call | {"warmup": warm["calls"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--uvloop", action="store_true", help="run all three processes on uvloop")
    parser.add_argument("--role", choices=["engine", "gateway", "floor"], help=argparse.SUPPRESS)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--processes", type=int, nargs="+", help="numbers of gateway processes; only these")
    args = parser.parse_args()
    if args.uvloop:
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    if args.role == "engine":
        asyncio.run(serve_engine())
    elif args.role == "gateway":
        asyncio.run(serve_gateway(args.engine, args.folder))
    elif args.role == "floor":
        asyncio.run(serve_floor(args.engine))
    elif args.processes:
        found = gateways.measure(args.processes, args.seconds)
        print(json.dumps({"processes": found, "load_average": os.getloadavg()[0]}))
    else:
        report(args)


def growing() -> dict[str, Any]:
    """What a call costs whose prompt grows with each turn, up to some 20,000 tokens, one agent at a time."""
    engine = records.Child("--role", "engine")
    try:
        found = records.one_size(engine.hello["url"], GROWING_TURNS, GROWING_ROLLOUTS)
    finally:
        engine.process.terminate()
        engine.process.wait()
    tokens = GROWING_TURNS * (records.ASKED + records.ANSWERED + 4)
    names = ("turns", "rollouts", "mb", "cpu_ms", "recording_ms", "floor_ms")
    return {"prompt_tokens_at_the_end": tokens, **{name: found[name] for name in names}}


def beside(args: argparse.Namespace) -> dict[str, Any]:
    """The other gateway under the same load, or why it cannot be measured."""
    try:
        python = agent_lightning.install()
    except agent_lightning.NotInstalled as why:
        return {"version": agent_lightning.VERSION, "not_run": str(why)}
    children = [Child("--role", "engine")]
    try:
        children.append(
            Child(children[0].hello["url"], command=[str(python), "-I", agent_lightning.__file__])
        )
        found = {f"c{c}": measure(children[1], c, args.seconds) for c in args.concurrency}
    finally:
        for child in children:
            child.process.terminate()
            child.process.wait()
    return {"version": agent_lightning.VERSION, **found}


def report(args: argparse.Namespace) -> None:
    loop = ["--uvloop"] if args.uvloop else []
    engine = Child("--role", "engine", *loop)
    floor = Child("--role", "floor", "--engine", engine.hello["url"], *loop)
    with tempfile.TemporaryDirectory() as folder:
        gateway = Child("--role", "gateway", "--engine", engine.hello["url"], "--folder", folder, *loop)
        try:
            out: dict[str, Any] = {"floor_c16": measure(floor, 16, args.seconds)}
            out |= {f"c{c}": measure(gateway, c, args.seconds) for c in args.concurrency}
            out["sse_200_chunks_c32"] = measure(gateway, 32, max(3.0, args.seconds / 2), stream=True)
            out["stored_all"] = gateway.ask()["stored"]
        finally:
            for child in (gateway, floor, engine):
                child.process.terminate()
                child.process.wait()
    out["growing"] = growing()
    out["agent_lightning"] = beside(args)
    print(
        json.dumps(
            {
                "python": sys.version.split()[0],
                "uvloop": args.uvloop,
                "seconds": args.seconds,
                "load_average": os.getloadavg()[0],
                **out,
            }
        )
    )


if __name__ == "__main__":
    main()
