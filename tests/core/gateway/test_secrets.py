"""What an engine or a client says of a key is neither passed on, nor recorded, nor logged."""

import json
import logging

import pytest
from aiohttp import web
from contract.pages import request, send
from core.gateway.conftest import chunks, events, whole

from agentlightning.gateway import Upstream

KEY = "engine-secret/with+signs"


def recorded(world):
    return json.dumps([[c.request, c.response, c.error] for c in world.store.calls])


@pytest.fixture
def echo(world):
    """An engine that quotes its key in what it says, and the route to it."""
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", api_key=KEY))

    async def answer(request, body):
        assert request.headers["Authorization"] == f"Bearer {KEY}"
        if body.get("stream"):
            return await world.engine.stream(request, chunks(body, text=f"it is {KEY} you see"))
        api = "chat" if "chat" in request.path else "completions"
        told = whole(body, text=f"it is {KEY} you see", api=api) | {"headers": dict(request.headers)}
        return web.json_response(told, headers={"x-request-id": KEY})

    world.engine.answer = answer
    return world


ASKED = {
    "/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/completions": {"prompt": "hi"},
}


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_key_in_an_answer(echo, path, stream):
    await asks_for_the_key(echo, path, ASKED[path], stream)


async def asks_for_the_key(echo, path, asked, stream):
    """The answer at ``path`` of an engine that tells its key has no key in it, and the record has none."""
    raw = json.dumps({"model": "m", "stream": stream, **asked}).encode()
    got = await echo.post(path=path, data=raw)
    assert got.status == 200, got.raw
    assert KEY.encode() not in got.raw and b"***" in got.raw
    assert KEY not in str(got.headers)
    assert KEY not in recorded(echo) and "***" in recorded(echo)
    assert echo.store.calls[0].response_ids and echo.store.calls[0].status == "ok"


async def test_a_key_that_json_escapes(echo):
    async def answer(request, body):
        raw = json.dumps(whole(body, text=f"it is {KEY}")).replace("/with", r"\/with")
        return web.Response(body=raw.encode(), content_type="application/json")

    echo.engine.answer = answer
    got = await echo.post()
    assert KEY not in str(json.loads(got.raw)) and KEY not in recorded(echo)


async def test_a_key_in_pieces_is_not_recorded(echo):
    async def answer(request, body):
        told = chunks(body, text="it is engine-secret /with+signs")
        for item in told:
            for choice in item["choices"]:
                if choice["delta"].get("content") == " /with+signs":
                    choice["delta"]["content"] = "/with+signs"
        return await echo.engine.stream(request, told)

    echo.engine.answer = answer
    got = await echo.post({"stream": True})
    assert got.status == 200 and events(got.raw)[-1] == "[DONE]"
    assert KEY not in recorded(echo) and "it is ***" in recorded(echo)


async def test_a_placeholder_is_no_secret(world):
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", api_key="EMPTY"))
    world.engine.options = {"text": "the list is EMPTY"}
    got = await world.post()
    assert json.loads(got.raw)["choices"][0]["message"]["content"] == "the list is EMPTY"


async def test_a_header_that_is_too_long_for_the_gateways_client(echo):
    async def answer(request, body):
        return web.json_response(whole(body), headers={"X-Echo": KEY * 2000})

    echo.engine.answer = answer
    got = await echo.post()
    assert got.status == 502 and KEY.encode() not in got.raw and KEY not in recorded(echo)


async def refuses_without_logging(url, header, log):
    """The server at ``url`` refuses a request whose ``header`` is too long, and logs nothing of it."""
    secret = "s3cr3t-" * 10_000
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n{header}{secret}\r\n\r\n"
    assert (await send(url, head.encode())).status == 400
    assert (await send(url, f"GET /{secret} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())).status == 400
    assert (await send(url, f"GET / HTTP/1.1\r\ns3cr3t- {secret[:99]}\r\n\r\n".encode())).status == 400
    assert (await send(url, request("GET", "/health", {"Host": "localhost"}))).status in (200, 404)
    assert "a malformed request was refused" in log.text and "s3cr3t" not in log.text


HEADERS = ["Authorization: Bearer ", "X-API-Key: ", "Cookie: "]


@pytest.mark.parametrize("header", HEADERS)
async def test_a_header_that_is_too_long_is_not_logged(world, caplog, header):
    caplog.set_level(logging.DEBUG)
    await refuses_without_logging(world.url, header, caplog)
