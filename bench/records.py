"""What an agent of many turns costs: bytes on file, CPU at the gateway, and memory from records to rows.

    python bench/records.py                 # everything
    python bench/records.py --small         # agents alone, no steps of 64 and 512 rollouts

Agents of 10, 20, 40 and 80 turns; each turn adds some 1,610 tokens to the prompt (80 turns: 129 thousand),
and sends its whole history, as agents do. Three processes: a scripted engine, which gives the token ids of a
prompt word by word; the gateway on a SQLite store; and this one, the agents. CPU is the gateway process's own
(user + system, record and commit included); ``floor`` is a bare proxy under the same traffic, which reads,
forwards and returns the bodies and records nothing: what is above it is the cost of the gateway. A step is
read and credited in a process of its own: seconds from ``store.records`` to rows, and its peak memory.

``linear``: from 10 to 80 turns, the bytes on file, the CPU of recording (``add_calls``) and the CPU from
records to rows grow by at most 20 % for each new token. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TURNS = (10, 20, 40, 80)
ASKED, ANSWERED = 1206, 404
"""Words of a user message and of an answer; each is a token, and each message has one or two more."""
CALLS = 320
"""Of all agents of a size together, so that sizes compare."""
STEPS = ((64, 80), (512, 20))
"""Rollouts and turns of a step."""
GROUP = 8
VOCABULARY = 100_000
RESULTS = Path(__file__).resolve().parent / "results"


def words(chance: random.Random, count: int) -> str:
    """Text of so many words; a word is the number of its token in letters."""
    return " ".join(_word(chance.randrange(VOCABULARY)) for _ in range(count))


def _word(number: int) -> str:
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    out = ""
    while number:
        number, digit = divmod(number, len(letters))
        out += letters[digit]
    return out or "e"


# --------------------------------------------------------------------------------------------------- engine
class Engine(asyncio.Protocol):
    """One connection. A message's tokens: its role, its words, an end; the answer's: its words, an end."""

    known: dict[str, str] = {}
    number = 0

    def connection_made(self, transport: Any) -> None:
        self.transport, self.buffer = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        length = int(self.buffer[:end].lower().split(b"content-length:")[1].split(b"\r\n")[0])
        if len(self.buffer) >= end + 4 + length:
            body = bytes(self.buffer[end + 4 : end + 4 + length])
            del self.buffer[: end + 4 + length]
            self.answer(json.loads(body))

    def ids(self, message: dict[str, Any]) -> str:
        """Token ids of a message, as JSON numbers."""
        text = message["content"]
        if text not in self.known:
            self.known[text] = ",".join(str(VOCABULARY + hash_of(word) % 50_000) for word in text.split())
        role = {"system": 1, "user": 2, "assistant": 3}[message["role"]]
        return f"{role},{self.known[text]},4"

    def answer(self, body: dict[str, Any]) -> None:
        Engine.number += 1
        chance = random.Random(Engine.number)
        message = {"role": "assistant", "content": words(chance, ANSWERED)}
        prompt = ",".join([*map(self.ids, body["messages"]), "3"])
        response = self.ids(message)[2:]
        logprobs = {"content": [{"token": "", "logprob": -chance.random()} for _ in range(ANSWERED + 1)]}
        counts = {"prompt_tokens": prompt.count(",") + 1, "completion_tokens": ANSWERED + 1}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
        head = {"id": f"c-{Engine.number}", "object": "chat.completion", "created": 1, "model": "bench"}
        raw = json.dumps({**head, "usage": counts}, separators=(",", ":"))[:-1]
        part = json.dumps(choice, separators=(",", ":"))[:-1]
        out = f'{raw},"prompt_token_ids":[{prompt}],"choices":[{part},"token_ids":[{response}]}}]}}'.encode()
        self.transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(out)
            + out
        )


def hash_of(word: str) -> int:
    """The same in every process."""
    return int.from_bytes(word.encode()[-4:], "little") * 2654435761 >> 7


async def serve_engine() -> None:
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", 0, backlog=256)
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"}), flush=True)
    await server.serve_forever()


# -------------------------------------------------------------------------------------------------- gateway
async def serve_gateway(engine: str, folder: str) -> None:
    """Lease attempts, serve them, end them; each line on stdin is a command, answered with what was used."""
    from agentlightning import semconv
    from agentlightning.gateway import AttemptInfo, Gateway, SamplingPolicy, Upstream
    from agentlightning.keys import Keys
    from agentlightning.store import SQLiteStore
    from agentlightning.types import AttemptStatus, Span

    store = SQLiteStore(Path(folder) / "store.sqlite")
    recording = 0.0
    write = store.add_calls

    async def add_calls(*args: Any, **options: Any) -> None:
        nonlocal recording
        began = time.process_time()
        await write(*args, **options)
        recording += time.process_time() - began

    store.add_calls = add_calls  # type: ignore[method-assign]
    gateway = Gateway(store, Keys())
    gateway.add_route(Upstream(url=engine, model="bench"))
    gateway.policy_sampling("default", SamplingPolicy())
    url = await gateway.start()
    say({"url": url})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        attempts: list[list[str]] = []
        for place in range(command.get("open", 0)):
            await store.enqueue_rollout({"i": place}, group_id=f"g{place // GROUP}", sample=place % GROUP)
            lease = await store.dequeue_rollout("bench")
            assert lease is not None
            ids = {"rollout_id": lease.rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}
            key = gateway.open_attempt(AttemptInfo(**ids, fence=lease.attempt.fence, seed=place))
            attempts.append([key, *ids.values()])
        for place, (_, rollout_id, attempt_id) in enumerate(command.get("end", ())):
            await gateway.close_attempt(attempt_id)
            reward = Span(
                rollout_id=rollout_id,
                attempt_id=attempt_id,
                name=semconv.REWARD_SPAN,
                attributes={semconv.REWARD_VALUE: float(place % 3)},
            )
            await store.update_attempt(rollout_id, attempt_id, AttemptStatus.SUCCEEDED, returned=[reward])
        pages, free, size = (
            store.db.connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        say({"attempts": attempts, "file": (pages - free) * size, "cpu": cpu(), "recording": recording})
    await gateway.stop()
    await store.close()


async def serve_floor(engine: str) -> None:
    """The least an aiohttp proxy can do: add a field, ask the engine, pass the bytes on; no record."""
    import aiohttp
    import msgspec
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        body = msgspec.json.decode(await request.read())
        sent = msgspec.json.encode({**body, "return_token_ids": True})
        headers = {"content-type": "application/json"}
        async with session.post(f"{engine}/chat/completions", data=sent, headers=headers) as response:
            raw = await response.read()
        return web.Response(body=raw, content_type="application/json")

    app = web.Application(client_max_size=1 << 28)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        say({"url": f"http://127.0.0.1:{runner.addresses[0][1]}/v1"})
        while await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
            say({"cpu": cpu()})


def cpu() -> float:
    """Seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def say(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


# -------------------------------------------------------------------------------------- from records to rows
async def credit(folder: str) -> None:
    """Read the records of all rollouts and turn them into rows and fingerprints, as a training step does."""
    from agentlightning.algorithms.crediting import StepCrediting
    from agentlightning.credit.assign import StepCredit
    from agentlightning.recipes import GRPO
    from agentlightning.store import SQLiteStore
    from agentlightning.types import RolloutStatus

    store = SQLiteStore(Path(folder) / "store.sqlite")
    groups: dict[str | None, list[Any]] = {}
    for rollout in await store.query_rollouts(limit=100_000, status=[RolloutStatus.SUCCEEDED]):
        groups.setdefault(rollout.group_id, []).append(rollout)
    before, began, used = peak_mb(), time.perf_counter(), time.process_time()
    credit = StepCrediting(store, lambda: StepCredit(GRPO(group_size=GROUP)), run_id="bench", step=0)
    batch = await credit.add(list(groups.values()))
    seconds, used = time.perf_counter() - began, time.process_time() - used
    tokens = sum(len(row.token_ids) for row in batch.rows)
    rollouts = sum(map(len, groups.values()))
    assert len(batch.rows) == rollouts, f"{len(batch.rows)} rows of {rollouts} rollouts"
    await store.close()
    say(
        {
            "rows": len(batch.rows),
            "tokens": tokens,
            "seconds": round(seconds, 3),
            "cpu_seconds": round(used, 3),
            "peak_mb": round(peak_mb(), 1),
            "before_mb": round(before, 1),
        }
    )


def peak_mb() -> float:
    """Peak resident memory of this process."""
    return (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        / 1024
        * (1 if sys.platform != "darwin" else 2**-10)
    )


# --------------------------------------------------------------------------------------------------- agents
class Child:
    """This file in another role."""

    def __init__(self, *args: str) -> None:
        command = [sys.executable, __file__, *args]
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

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def talk(url: str, key: str, turns: int, seed: int) -> None:
    """One agent: its history grows by a user message and an answer a turn."""
    where, chance = urlsplit(url), random.Random(seed)
    connection = HTTPConnection(where.netloc)
    messages: list[dict[str, Any]] = []
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    for _ in range(turns):
        messages.append({"role": "user", "content": words(chance, ASKED)})
        body = json.dumps({"model": "bench", "messages": messages, "temperature": 1.0, "logprobs": True})
        connection.request("POST", f"{where.path}/chat/completions", body, headers)
        answer = connection.getresponse()
        raw = answer.read()
        if answer.status != 200:
            raise SystemExit(f"HTTP {answer.status}: {raw[:500]!r}")
        messages.append(json.loads(raw)["choices"][0]["message"])
    connection.close()


def agents(gateway: Child, keys: Sequence[str], turns: int, at_once: int) -> None:
    with ThreadPoolExecutor(at_once) as pool:
        jobs = [pool.submit(talk, gateway.hello["url"], key, turns, n) for n, key in enumerate(keys)]
        for job in jobs:
            job.result()


def one_size(engine: str, turns: int, rollouts: int) -> dict[str, Any]:
    """Agents of so many turns: what the gateway and its file took."""
    found: dict[str, Any] = {"turns": turns, "rollouts": rollouts}
    with tempfile.TemporaryDirectory() as folder:
        gateway = Child("--role", "gateway", "--engine", engine, "--folder", folder)
        agents(gateway, [a[0] for a in gateway.ask(open=1)["attempts"]], 2, 1)  # warm
        before = gateway.ask(open=rollouts)
        agents(gateway, [a[0] for a in before["attempts"]], turns, 1)
        after = gateway.ask(end=before["attempts"])
        gateway.end()
        found["credit"] = credited(folder)
        calls = turns * rollouts
        found["mb"] = round((after["file"] - before["file"]) / rollouts / 1e6, 3)
        found["cpu_ms"] = round(1000 * (after["cpu"] - before["cpu"]) / calls, 3)
        found["recording_ms"] = round(1000 * (after["recording"] - before["recording"]) / calls, 3)
    floor = Child("--role", "floor", "--engine", engine)
    agents(floor, ["none"], 2, 1)
    before = floor.ask()
    agents(floor, ["none"] * rollouts, turns, 1)
    found["floor_ms"] = round(1000 * (floor.ask()["cpu"] - before["cpu"]) / (turns * rollouts), 3)
    floor.end()
    return found


def step(engine: str, rollouts: int, turns: int) -> dict[str, Any]:
    """A training step: its rollouts, then their rows in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        gateway = Child("--role", "gateway", "--engine", engine, "--folder", folder)
        attempts = gateway.ask(open=rollouts)["attempts"]
        agents(gateway, [a[0] for a in attempts], turns, 4)
        file = gateway.ask(end=attempts)["file"]
        gateway.end()
        found = credited(folder)
    return {"rollouts": rollouts, "turns": turns, "file_mb": round(file / 1e6, 1), **found}


def credited(folder: str) -> dict[str, Any]:
    """The rows of a store's rollouts, made in a process of its own."""
    command = [sys.executable, __file__, "--role", "credit", "--folder", folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# --------------------------------------------------------------------------------------------------- report
def flat(values: Sequence[float]) -> bool:
    """Per token, the last is at most 20 % above the first."""
    return values[-1] <= 1.2 * values[0]


def report(small: bool) -> dict[str, Any]:
    engine = Child("--role", "engine")
    sizes = [one_size(engine.hello["url"], turns, CALLS // turns) for turns in TURNS]
    for size in sizes:
        print(json.dumps(size), file=sys.stderr)
    steps = [] if small else [step(engine.hello["url"], *one) for one in STEPS]
    engine.process.terminate()
    tokens = [turns * (ASKED + ANSWERED + 4) for turns in TURNS]
    bytes_a_token = [1e6 * size["mb"] / n for size, n in zip(sizes, tokens, strict=True)]
    recording = [size["recording_ms"] for size in sizes]
    credit = [size["credit"]["cpu_seconds"] / size["credit"]["tokens"] for size in sizes]
    last = sizes[-1]
    found: dict[str, Any] = {
        "sizes": sizes,
        "steps": steps,
        "bytes_a_token": [round(value, 2) for value in bytes_a_token],
        "mb_80_turns": last["mb"],
        "cpu_ms_80_turns": last["cpu_ms"],
        "linear": all(map(flat, (bytes_a_token, recording, credit))),
    }
    if steps:
        long, many = steps
        found |= {"peak_mb_step_64x80": long["peak_mb"], "seconds_step_512x20": many["seconds"]}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="What agents of many turns cost.")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--role", choices=["engine", "gateway", "floor", "credit"], help=argparse.SUPPRESS)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role == "engine":
        asyncio.run(serve_engine())
    elif args.role == "gateway":
        asyncio.run(serve_gateway(args.engine, args.folder))
    elif args.role == "floor":
        asyncio.run(serve_floor(args.engine))
    elif args.role == "credit":
        asyncio.run(credit(args.folder))
    else:
        print(json.dumps(report(args.small)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
