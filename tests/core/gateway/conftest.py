"""A scripted engine, a store double that can be slow or broken, and a started gateway."""

import asyncio
import json
from collections import Counter
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web

from agentlightning.gateway import AttemptInfo, Gateway, Limits, Upstream
from agentlightning.gateway.settings import CallSection
from agentlightning.keys import Keys
from agentlightning.store.base import AttemptEnded, NotFound
from agentlightning.types import Attempt, AttemptStatus, Rollout

SECRET = b"0123456789abcdef0123456789abcdef"
PROMPT = [11, 12, 13]


class StoreDouble:
    """Keeps calls in a list. ``hold``: an event commits wait for. ``fail``: raised instead of storing."""

    def __init__(self):
        self.calls = []
        self.counted = Counter()
        self.hold = None
        self.fail = None
        self.waiting = asyncio.Event()
        self.rollouts = {}
        self.attempts = {}
        self.lookups = 0
        self.stored_spans = []

    async def add_calls(self, calls, *, fence=None):
        self.waiting.set()
        if self.hold:
            await self.hold.wait()
        if self.fail:
            raise self.fail
        known = {c.call_id for c in self.calls}
        assert not known & {c.call_id for c in calls}
        self.calls.extend(calls)

    async def count(self, kind, reason, *, rollout_id=None, attempt_id=None, n=1):
        self.counted[kind, reason, attempt_id] += n

    async def get_rollout_by_id(self, rollout_id):
        self.lookups += 1
        if rollout_id not in self.rollouts:
            raise NotFound(rollout_id)
        return self.rollouts[rollout_id]

    async def query_attempts(self, rollout_id):
        return [a for a in self.attempts.values() if a.rollout_id == rollout_id]

    async def query_calls(self, rollout_id, attempt_id="latest"):
        return [c for c in self.calls if c.attempt_id == attempt_id]

    async def add_many_spans(self, spans):
        if self.fail:
            raise self.fail
        self.stored_spans.extend(spans)

    async def spans(self, rollout_id, attempt_id="latest", *, name=None, limit=None, after=None):
        found = [s for s in self.stored_spans if s.attempt_id == attempt_id and s.name == name]
        return found[:limit] if after is None else []

    def put(self, rollout_id, attempt_id, status=AttemptStatus.RUNNING, **fields):
        self.rollouts[rollout_id] = Rollout(rollout_id=rollout_id, **fields)
        self.attempts[attempt_id] = Attempt(attempt_id=attempt_id, rollout_id=rollout_id, status=status)

    def ended(self, attempt_id):
        self.fail = AttemptEnded(f"attempt {attempt_id} has ended")


def tokens_of(text):
    """One id a word; a word's logprob is minus its length over 100."""
    words = text.split()
    return [1000 + sum(w.encode()) for w in words], [-len(w) / 100 for w in words]


def whole(body, text="hello there world", tool=None, api="chat", prompt_ids=PROMPT, **extra):
    """What an engine answers to ``body``."""
    ids, logprobs = tokens_of(text)
    choices = []
    for index in range(body.get("n") or 1):
        choice = {"index": index, "finish_reason": "tool_calls" if tool else "stop", "token_ids": ids}
        if api == "chat":
            choice["message"] = {"role": "assistant", "content": None if tool else text}
            if tool:
                function = {"name": tool[0], "arguments": tool[1]}
                choice["message"]["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
            choice["logprobs"] = {
                "content": [
                    {"token": str(t), "logprob": p, "top_logprobs": []}
                    for t, p in zip(ids, logprobs, strict=True)
                ]
            }
        else:
            choice |= {
                "text": text,
                "prompt_token_ids": list(prompt_ids),
                "logprobs": {"token_logprobs": logprobs},
            }
        choices.append(choice)
    usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(ids) * len(choices)}
    usage["total_tokens"] = sum(usage.values())
    out = {"id": "chatcmpl-1", "created": 1, "model": body["model"], "choices": choices, "usage": usage}
    out["object"] = "chat.completion" if api == "chat" else "text_completion"
    if api == "chat":
        out["prompt_token_ids"] = list(prompt_ids)
    return out | extra


def chunks(body, text="hello there world", tool=None, ids=True):
    """What an engine streams to ``body``: the same answer as :func:`whole`, word by word."""
    head = {"id": "chatcmpl-1", "created": 1, "model": body["model"], "object": "chat.completion.chunk"}
    first = head | {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    }
    if ids:
        first["prompt_token_ids"] = PROMPT
    out = [first]
    token_ids, logprobs = tokens_of(text)
    words = [w if i == 0 else " " + w for i, w in enumerate(text.split())]
    for i, (token, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        if tool:
            function = {"name": tool[0], "arguments": tool[1]} if i == 0 else {"arguments": ""}
            piece = {"index": 0, "function": function} | (
                {"id": "call_1", "type": "function"} if i == 0 else {}
            )
            delta = {"tool_calls": [piece]}
        else:
            delta = {"content": words[i]}
        choice = {"index": 0, "delta": delta, "finish_reason": None}
        if ids:
            choice |= {
                "token_ids": [token],
                "logprobs": {"content": [{"token": str(token), "logprob": logprob}]},
            }
        out.append(head | {"choices": [choice]})
    out.append(
        head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if tool else "stop"}]}
    )
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(token_ids), "total_tokens": 0}
        out.append(head | {"choices": [], "usage": usage})
    return out


class Engine:
    """An OpenAI-compatible engine whose answers a test scripts: set ``answer`` to a coroutine function."""

    def __init__(self):
        self.bodies = []
        self.headers = []
        self.answer = self.default
        self.options = {}
        self.stream_options = {}
        self.arrived = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.runner = None
        self.url = ""

    async def start(self, port=0):
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._serve)
        app.router.add_post("/v1/completions", self._serve)
        self.runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/v1"

    async def _serve(self, request):
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.arrived.set()
        try:
            return await self.answer(request, body)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def default(self, request, body):
        api = "chat" if "chat" in request.path else "completions"
        if not body.get("stream"):
            return web.json_response(whole(body, api=api, **self.options))
        return await self.stream(request, chunks(body, **self.options, **self.stream_options))

    async def stream(self, request, items, done=True, pause_after=None, gate=None):
        """Send ``items`` one by one; after item ``pause_after`` wait for ``gate``."""
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await out.prepare(request)
        for place, item in enumerate(items):
            await out.write(
                item if isinstance(item, bytes) else b"data: " + json.dumps(item).encode() + b"\n\n"
            )
            if place == pause_after:
                await gate.wait()
        if done:
            await out.write(b"data: [DONE]\n\n")
        return out


@pytest.fixture
async def engine():
    engine = Engine()
    await engine.start()
    yield engine
    await engine.runner.cleanup()


@pytest.fixture
def store():
    return StoreDouble()


@pytest.fixture
def keep_alive():
    """Seconds between comments of a silent stream; a module whose tests wait for one has its own."""
    return 5.0


@pytest.fixture
async def world(request, engine, store, keep_alive):
    """A started gateway with route ``default`` to the engine and one open training attempt ``at-1``. The
    fixture's parameter: which calls are trained.
    """
    keys, calls = Keys(SECRET), CallSection(select=getattr(request, "param", None))
    gateway = Gateway(
        store, keys, calls=calls, limits=Limits(connect=300.0, total=300.0), keep_alive=keep_alive
    )
    gateway.add_route(Upstream(url=engine.url, model="tiny", api_key="engine-secret"))
    url = await gateway.start()
    session = aiohttp.ClientSession()
    world = SimpleNamespace(gateway=gateway, engine=engine, store=store, keys=keys, url=url, session=session)
    world.open = lambda name="1", **fields: gateway.open_attempt(
        AttemptInfo(**({"rollout_id": f"ro-{name}", "attempt_id": f"at-{name}", "run_id": "run"} | fields))
    )
    world.key = world.open(seed=7)

    async def post(body=None, *, key=None, path="/chat/completions", headers=None, data=None):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]} | (body or {})
        send = {"Authorization": f"Bearer {key or world.key}", "Content-Type": "application/json"} | (
            headers or {}
        )
        raw = json.dumps(body).encode() if data is None else data
        async with session.post(url + path, data=raw, headers=send) as response:
            return SimpleNamespace(
                status=response.status, raw=await response.read(), headers=response.headers
            )

    async def metrics():
        accept = {"Accept": "application/json"}
        async with session.get(url.removesuffix("/v1") + "/metrics", headers=accept) as response:
            return await response.json()

    world.post, world.metrics = post, metrics
    yield world
    await session.close()
    await gateway.stop()


def events(raw):
    """The JSON events of an SSE body; ``[DONE]`` stays text."""
    out = []
    for line in raw.decode().split("\n\n"):
        if line.startswith("data: "):
            out.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
    return out
