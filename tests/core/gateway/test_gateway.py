"""Routes, routing by policy, pause and drain, where it may listen."""

import asyncio
import json

import aiohttp
import openai
import pytest
from aiohttp import web
from core.gateway.conftest import SECRET, whole

from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.gateway.settings import GatewaySection
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError


async def get(world, path, method="GET"):
    accept = {"Accept": "application/json"}
    async with world.session.request(
        method, world.url.removesuffix("/v1") + path, headers=accept
    ) as response:
        return response.status, await response.json(), response.headers


async def test_models_health_metrics(world):
    world.gateway.add_route(Upstream(policy="judge", url=world.engine.url, model="big"))
    status, body, _ = await get(world, "/v1/models")
    assert status == 200 and [m["id"] for m in body["data"]] == ["default", "judge"]
    assert (await get(world, "/health"))[1] == {"status": "ok", "policies": ["default", "judge"]}
    await world.post()
    status, body, _ = await get(world, "/metrics")
    assert body["calls"] == {"ok": 1} and body["attempts"] == 1 and "secret" not in json.dumps(body)
    address = world.engine.url.removesuffix("/v1").removeprefix("http://")
    assert address not in json.dumps(body)  # an agent reads it too: no address to ask past the gateway


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method-not-allowed"),
        ("POST", "/v1/models", 405, "method-not-allowed"),
        ("POST", "/v1/moderations", 404, "unknown-route"),
        ("POST", "/v1/embeddings", 404, "unsupported-route"),
        ("POST", "/openai/deployments/ada/embeddings", 404, "unsupported-route"),
        ("POST", "/v1/responses/compact", 404, "unsupported-route"),
        ("GET", "/", 404, "unknown-route"),
        ("POST", "/v1/responses/resp_1/cancel", 404, "unsupported-route"),
        ("POST", "/responses/resp_1/cancel", 404, "unsupported-route"),
        ("GET", "/chat/completions", 405, "method-not-allowed"),
        ("POST", "/v1/messages/batches", 404, "unsupported-route"),
    ],
)
async def test_other_routes_say_which_exist(world, method, path, status, code):
    got, body, headers = await get(world, path, method)
    assert (got, body["error"]["code"]) == (status, code)
    assert "/v1/chat/completions" in body["error"]["message"]
    if status == 405:
        assert headers["Allow"] in ("GET", "POST", "GET, POST", "GET, DELETE")
    assert (await world.metrics())["refused"] == {code: 1}


@pytest.mark.parametrize(
    ("path", "what"),
    [("/v1/embeddings", "their own provider")],
)
async def test_what_is_not_served_says_what_to_do(world, path, what):
    assert what in (await get(world, path, "POST"))[1]["error"]["message"]


@pytest.mark.parametrize("path", ["", "/v1"])
@pytest.mark.parametrize("names", ["endpoint", "base", "deployment", "v1"])
async def test_azures_clients_are_served(world, path, names):
    """The deployment names the model; the key comes as ``api-key``."""
    root = world.url.removesuffix("/v1") + path
    world.gateway.add_route(Upstream(policy="small", url=world.engine.url, model="small-one"))
    given = {"endpoint": {"azure_endpoint": root}, "base": {"base_url": root}}
    given["deployment"] = {"azure_endpoint": root, "azure_deployment": "small"}
    kind = openai.AsyncOpenAI if names == "v1" else openai.AsyncAzureOpenAI
    told = (
        {"base_url": f"{root}/openai/v1"} if names == "v1" else given[names] | {"api_version": "2025-01-01"}
    )
    async with kind(api_key=world.key, max_retries=0, **told) as client:
        messages = [{"role": "user", "content": "hi"}]
        answer = await client.chat.completions.create(model="small", messages=messages)
    assert answer.choices[0].message.content and world.store.calls[0].policy == "small"
    assert world.engine.bodies[0]["model"] == "small-one"


async def test_a_deployment_is_the_model_of_a_body_without_one(world):
    body = {"messages": [{"role": "user", "content": "hi"}]}
    url = world.url.removesuffix("/v1") + "/openai/deployments/default/chat/completions?api-version=1"
    async with world.session.post(url, json=body, headers={"api-key": world.key}) as response:
        assert response.status == 200
    assert world.store.calls[0].model == "default"


async def test_requests_of_no_route_count_for_their_attempt(world):
    key = world.open("r")
    headers = {"Authorization": f"Bearer {key}"}
    async with world.session.post(f"{world.url}/images/generations", json={}, headers=headers) as response:
        assert response.status == 404
    (((kind, reason, attempt), times),) = world.store.counted.items()
    assert (kind, reason, times) == ("refused", "unknown-route", 1) and attempt


async def test_routing(world):
    for policy in ("solver", "critic"):
        world.gateway.add_route(Upstream(policy=policy, url=world.engine.url, model=f"{policy}-model"))
    key = world.open("r", policies={"Anna": "critic", "Lost": "nowhere"})

    async def ask(model, **headers):
        got = await world.post(
            {"model": model}, key=key, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        return world.engine.bodies[-1]["model"] if got.status == 200 else json.loads(got.raw)["error"]

    anna = '{"agent": "Anna"}'
    assert await ask("solver", x_agl_policy="critic", x_agl_tags=anna) == "solver-model"
    assert await ask("gpt-4o", x_agl_policy="solver", x_agl_tags=anna) == "solver-model"
    assert await ask("gpt-4o", x_agl_tags=anna) == "critic-model"
    assert await ask("gpt-4o") == "tiny"
    assert [c.policy for c in world.store.calls] == ["solver", "solver", "critic", "default"]
    assert world.store.calls[1].model == "gpt-4o"
    for headers in ({"x_agl_policy": "nowhere"}, {"x_agl_tags": '{"agent": "Lost"}'}):
        error = await ask("gpt-4o", **headers)
        assert error["code"] == "no-route" and "solver" in error["message"]
    world.gateway.remove_route("default")
    assert (await ask("gpt-4o"))["code"] == "no-route"
    world.gateway.remove_route("critic")
    assert await ask("gpt-4o") == "solver-model", "the only route is the default"
    with pytest.raises(LookupError, match="no route 'critic'"):
        world.gateway.remove_route("critic")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:80/v1", "ftp://h/v1", "http://user:pw@h/v1", "http://h/v1?key=x", ""]
)
def test_bad_upstream_urls(url):
    with pytest.raises(ValueError, match="route 'default'") as caught:
        Upstream(url=url, model="m")
    assert "pw" not in str(caught.value)


async def test_pause_holds_drain_waits_resume_lets_go(world):
    go = asyncio.Event()

    async def answer(request, body):
        await go.wait()
        return web.json_response(whole(body))

    world.engine.answer = answer
    version = 1
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", version=lambda: version))
    first = asyncio.create_task(world.post())
    await world.engine.arrived.wait()
    await world.gateway.hold()
    others = [asyncio.create_task(world.post()) for _ in range(3)]
    while (await world.metrics())["waiting"] < 3:
        pass
    assert await world.gateway.drain(timeout=0.01) is False
    assert (await get(world, "/health"))[1]["status"] == "paused"
    draining = asyncio.create_task(world.gateway.drain())
    go.set()
    assert await draining is True
    assert (await first).status == 200 and len(world.engine.bodies) == 1
    version = 2
    await world.gateway.release()
    assert [r.status for r in await asyncio.gather(*others)] == [200] * 3
    assert [c.policy_version for c in world.store.calls] == [1, 2, 2, 2]
    metrics = await world.metrics()
    assert (metrics["waited"], metrics["waiting"], metrics["in_flight"]) == (3, 0, 0)


async def test_a_held_call_of_a_closed_attempt_never_reaches_the_engine(world):
    await world.gateway.hold()
    held = asyncio.create_task(world.post())
    while (await world.metrics())["waiting"] < 1:
        pass
    await world.gateway.close_attempt("at-1")
    assert (await held).status == 409
    assert world.store.calls[0].status == "cancelled" and not world.engine.bodies


@pytest.mark.parametrize("listen", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
async def test_only_loopback_without_a_secret(listen, store):
    with pytest.raises(UsageError, match="AGL_SECRET"):
        await Gateway(store, Keys(), GatewaySection(listen=listen)).start()


async def test_start_stop_and_url(store):
    gateway = Gateway(store, Keys(), GatewaySection(listen="localhost"))
    with pytest.raises(RuntimeError, match="not started"):
        _ = gateway.url
    url = await gateway.start()
    assert url == gateway.url and url.endswith("/v1")
    with pytest.raises(RuntimeError, match="started already"):
        await gateway.start()
    await gateway.stop()
    await gateway.stop()
    other = Gateway(store, Keys(SECRET), GatewaySection(listen="0.0.0.0", advertise="http://trainer"))
    assert (await other.start()).startswith("http://trainer:")
    taken = other.url.split(":")[2].split("/")[0]
    with pytest.raises(
        UsageError, match=rf"the gateway cannot listen on 127\.0\.0\.1:{taken}: .*by --listen; 0"
    ):
        await Gateway(store, Keys(), GatewaySection(listen=f"127.0.0.1:{taken}")).start()
    await other.stop()


async def test_an_unforeseen_failure_is_a_500_without_details(world, caplog):
    def broken(tags):
        raise RuntimeError("the user's predicate is broken")

    world.gateway._attempts._open["at-1"].selects = broken
    got = await world.post()
    assert got.status == 500 and b"predicate" not in got.raw
    assert "predicate is broken" in caplog.text


async def test_a_failure_of_ours_is_on_record(world, caplog):
    def broken():
        raise RuntimeError("no version today")

    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", version=broken))
    assert (await world.post()).status == 500
    assert world.store.calls[0].error == "gateway-error: RuntimeError: no version today"
    assert "no version today" in caplog.text


async def test_a_gateway_with_too_many_requests_says_when_to_ask_again() -> None:
    store = SQLiteStore(":memory:")
    gateway = Gateway(store, Keys(b"x" * 16), GatewaySection(max_requests=1))
    gateway._pipeline.under_way = 1  # as a call that waits for new weights
    url = await gateway.start()
    lease = await store.start_rollout({})
    key = gateway.open_attempt(AttemptInfo.of(lease.rollout, lease.attempt, {}))
    async with aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {key}"}
        async with http.post(f"{url}/chat/completions", json={"model": "m"}, headers=headers) as busy:
            assert busy.status == 503 and busy.headers["Retry-After"] == "1"
            assert (await busy.json())["error"]["code"] == "busy"
    assert gateway._pipeline.under_way == 1 and gateway.metrics.refused["busy"] == 1
    assert (await store.counts(lease.attempt.rollout_id))["refused"] == {"busy": 1}
    await gateway.stop()
    await store.close()
