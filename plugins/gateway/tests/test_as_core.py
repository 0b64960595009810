"""What the gateway does for chat completions, it does for the APIs of this plugin."""

import json
from collections import Counter

import openai
import pytest
from aiohttp import web
from core.gateway import (
    test_closed_policies as closed,
    test_faults as faults,
    test_gateway as routes,
    test_secrets as secrets,
)
from core.gateway.test_call import refuses_no_tokens
from core.gateway.test_closed_policies import judged as judged
from core.gateway.test_endpoints import PROMPT, fleet as fleet, moves_on
from core.gateway.test_hold import asked_again
from core.gateway.test_secrets import echo as echo

from agentlightning.gateway import Upstream


@pytest.fixture
def keep_alive():
    return 0.02  # a test of this file waits for a comment


ASKED = {
    "/responses": {"input": "hi"},
    "/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/responses/resp_1"),
        ("PUT", "/conversations/conv_1/items"),
        ("GET", "/v1/messages"),
    ],
)
async def test_other_methods_say_which_exist(world, method, path):
    await routes.test_other_routes_say_which_exist(world, method, path, 405, "method-not-allowed")


async def test_what_is_not_served_says_what_to_do(world):
    what = "send the turns that you keep"
    await routes.test_what_is_not_served_says_what_to_do(world, "/v1/responses/compact", what)


@pytest.mark.parametrize("limit", [0, -1])
@pytest.mark.parametrize(("path", "name"), [("/responses", "max_output_tokens"), ("/messages", "max_tokens")])
async def test_a_limit_of_no_token_is_refused(world, path, name, limit):
    await refuses_no_tokens(world, path, {**ASKED[path], name: limit}, name)


@pytest.mark.parametrize("path", [*ASKED, "/messages/count_tokens"])
async def test_every_api_is_closed(judged, path):
    await closed.test_every_api_is_closed(judged, path, ASKED.get(path, {"messages": PROMPT}))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ASKED)
async def test_every_api_moves_on(world, fleet, path, stream):
    await moves_on(world, fleet, path, ASKED[path], stream)


@pytest.mark.parametrize(("path", "until"), [("/responses", b": keep-alive"), ("/messages", b"event: ping")])
async def test_a_replayed_stream_is_kept_alive_and_asked_again(world, path, until):
    await asked_again(world, path, ASKED[path], until)


@pytest.mark.parametrize(("change", "mended"), faults.MENDED.values(), ids=faults.MENDED)
@pytest.mark.parametrize("path", ASKED)
async def test_an_answer_that_the_agent_could_read_directly(world, change, mended, path):
    await faults.is_readable(world, change, mended, path, ASKED[path])


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_in_an_answer(echo, path, stream):
    await secrets.asks_for_the_key(echo, path, ASKED[path], stream)


@pytest.mark.parametrize("path", ["", "/v1"])
@pytest.mark.parametrize("names", ["endpoint", "v1"])
async def test_azures_clients_are_served(world, path, names):
    root = world.url.removesuffix("/v1") + path
    world.gateway.add_route(Upstream(policy="small", url=world.engine.url, model="small-one"))
    kind = openai.AsyncOpenAI if names == "v1" else openai.AsyncAzureOpenAI
    told = {"azure_endpoint": root, "api_version": "2025-01-01"}
    told = {"base_url": f"{root}/openai/v1"} if names == "v1" else told
    async with kind(api_key=world.key, max_retries=0, **told) as client:
        assert (await client.responses.create(model="small", input="hi")).output_text
    assert world.store.calls[0].policy == "small"


async def test_counting_tokens_needs_no_home(world, fleet):
    counted = Counter()
    for n, engine in enumerate(fleet.engines):
        runner = engine.runner
        await runner.cleanup()
        app = web.Application()

        async def count(request, n=n):
            counted[n] += 1
            return web.json_response({"count": 5, "max_model_len": 64})

        app.router.add_post("/tokenize", count)
        engine.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await engine.runner.setup()
        port = int(engine.url.removesuffix("/v1").rpartition(":")[2])
        await web.TCPSite(engine.runner, "127.0.0.1", port).start()
    for _ in range(6):
        got = await world.post({"messages": PROMPT}, path="/messages/count_tokens")
        assert json.loads(got.raw) == {"input_tokens": 5}
    assert counted == {0: 2, 1: 2, 2: 2}
