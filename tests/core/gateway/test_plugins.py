"""What plugins add to a gateway: an API of their own, and guards of its calls."""

import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.gateway.apis import ApiFormat
from agentlightning.gateway.errors import CallFailure, RequestRefused
from agentlightning.hookspecs import hookimpl
from agentlightning.keys import Keys
from agentlightning.plugins.manager import build
from agentlightning.specs import ApiFormatSpec, CallGuard

from .conftest import SECRET


class Shouts(ApiFormat):
    """Asks with a text, and is answered in capitals."""

    name = "shouts"

    def routes(self):
        async def heard(admitted, http, count):
            return web.json_response({"heard": admitted.attempt.part(Heard).texts})

        return {("GET", "/v1/shouts/heard"): heard}

    @asynccontextmanager
    async def chat(self, body, attempt):
        if "text" not in body:
            raise RequestRefused(400, "no-text", "send a text")
        yield {"model": "m", "messages": [{"role": "user", "content": body["text"]}]}

    def remember(self, attempt, call, chat):
        attempt.part(Heard).texts.append(chat["messages"][0]["content"])

    def render(self, body, raw, answer_id, stream):
        text = json.loads(raw)["choices"][0]["message"]["content"]
        return json.dumps({"id": answer_id, "text": text.upper()}).encode()


class Heard:
    def __init__(self, attempt):
        self.texts = []


class Voices:
    @hookimpl
    def agl_api_formats(self):
        return [ApiFormatSpec("/v1/shouts", Shouts)]


class Two(CallGuard):
    """Two calls, and no more."""

    name = "two"

    def __init__(self):
        self.left, self.seen = 2, []

    @asynccontextmanager
    async def admit(self, rollout_id):
        if not self.left:
            self.refused += 1
            raise CallFailure(403, "no-third", "two calls were made", retry=False, masked="budget")
        self.left -= 1
        yield
        self.seen.append(f"left {rollout_id}")

    def count(self, calls):
        self.seen += [call.status for call in calls]


@pytest.fixture
async def shouting(engine, store):
    """A started gateway with both."""
    guard = Two()
    gateway = Gateway(store, keys := Keys(SECRET), guards=[guard], plugins=build([Voices()], discover=False))
    gateway.add_route(Upstream(url=engine.url, model="tiny"))
    url = await gateway.start()
    key = gateway.open_attempt(AttemptInfo(rollout_id="ro", attempt_id="at"))
    assert keys.check(key).attempt_id == "at"
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:

        async def ask(path, body=None):
            method = session.get if body is None else session.post
            async with method(url + path, **({} if body is None else {"json": body})) as answer:
                return answer.status, await answer.json()

        yield ask, guard
    await gateway.stop()


async def test_an_api_of_a_plugin_is_recorded_and_remembers(shouting, store):
    ask, _ = shouting
    assert await ask("/shouts", {"text": "hi"}) == (200, {"id": "at-0", "text": "HELLO THERE WORLD"})
    (call,) = store.calls
    assert call.edited == {"api": "shouts"} and call.request["messages"][0]["content"] == "hi"
    assert await ask("/shouts/heard") == (200, {"heard": ["hi"]})
    status, answer = await ask("/shouts", {})
    assert status == 400 and answer["error"]["code"] == "no-text" and len(store.calls) == 1


async def test_a_guard_sees_each_call_before_and_after(shouting, store):
    ask, guard = shouting
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert [(await ask("/chat/completions", chat))[0] for _ in range(3)] == [200, 200, 403]
    assert guard.seen == ["ok", "left ro", "ok", "left ro", "error"] and guard.refused == 1
    assert [(call.status, call.masked) for call in store.calls][-1] == ("error", "budget")


@pytest.mark.parametrize("path", ["/responses", "/v1/conversations/conv_1/items", "/messages/count_tokens"])
async def test_an_api_that_is_not_installed_is_named(shouting, path):
    ask, _ = shouting
    status, answer = await ask(path.removeprefix("/v1"), {})
    assert status == 404 and answer["error"]["code"] == "unsupported-route"
    assert "pip install -c constraints.txt ./core ./plugins/gateway" in answer["error"]["message"]
