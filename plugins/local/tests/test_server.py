from __future__ import annotations

import asyncio
import gzip
import io
import threading

import aiohttp
import msgspec
import pytest
from contract.pages import pages_are_refused, programs_are_served, request, send

from agl_local.generation.engine import Engine
from agl_local.http.app import ADMIN_HEADER, create_app, serve
from agl_local.http.server import main
from agl_local.policy.folder import state
from agl_local.policy.shared import SharedWeights
from plugins.local.tests.engine_fixtures import TOOL, logprobs_of, small_policy

JSON = {"Content-Type": "application/json"}
ADMIN = {ADMIN_HEADER: "secret"}
USER = {"role": "user", "content": "Add 1 and 22 für mich"}
CALLS = 'Sure.\n<tool_call>\n{"name": "add", "arguments": {"a":1,  "b": 22}}\n</tool_call>'


def schema_format(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


class Client:
    """A client session bound to a server's address."""

    def __init__(
        self, session: aiohttp.ClientSession, address: str, engine: Engine, weights: SharedWeights | None
    ) -> None:
        self.session, self.address, self.engine, self.weights = session, address, engine, weights

    async def post(self, path: str, body=None, status: int = 200, **options):
        options.setdefault("json", body)
        async with self.session.post(self.address + path, **options) as answer:
            assert answer.content_type == "application/json"
            content = await answer.json()
            assert answer.status == status, content
            return content

    async def get(self, path: str, status: int = 200, **options):
        async with self.session.get(self.address + path, **options) as answer:
            content = await answer.json()
            assert answer.status == status, content
            return content

    async def chat(self, status: int = 200, **fields):
        return await self.post("/v1/chat/completions", {"messages": [USER], **fields}, status)


@pytest.fixture
async def client(policy):
    weights = SharedWeights()
    with Engine(policy, slots=8, max_len=320, name="tiny") as engine:
        app = create_app({"tiny": engine}, admin_token="secret", files={"tiny": weights.files})
        runner, address = await serve(app)
        async with aiohttp.ClientSession() as session:
            yield Client(session, address, engine, weights)
        await runner.cleanup()
    weights.close()


async def test_chat_with_ids_and_logprobs(client, policy):
    body = await client.chat(
        model="tiny", max_tokens=12, seed=4, logprobs=True, top_logprobs=2, return_token_ids=True
    )
    choice = body["choices"][0]
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny" and body["policy_version"] == 0
    assert body["prompt_token_ids"] == policy.tokenizer.apply([USER])
    ids, content = choice["token_ids"], choice["logprobs"]["content"]
    assert len(ids) == len(content) == body["usage"]["completion_tokens"]
    assert body["usage"]["prompt_tokens"] == len(body["prompt_token_ids"])
    assert body["usage"]["total_tokens"] == len(body["prompt_token_ids"]) + len(ids)
    assert [e["logprob"] for e in content] == pytest.approx(
        logprobs_of(policy, body["prompt_token_ids"], ids), abs=1e-5
    )
    assert b"".join(bytes(e["bytes"]) for e in content).decode("utf-8", "replace") == policy.tokenizer.decode(
        ids
    )
    assert all(len(e["top_logprobs"]) == 2 for e in content)
    assert choice["message"] == {"role": "assistant", "content": choice["message"]["content"]}
    assert choice["finish_reason"] in ("stop", "length")


async def test_without_the_extras_there_are_none(client):
    body = await client.chat(max_tokens=3, n=2)
    assert "prompt_token_ids" not in body
    assert [c["index"] for c in body["choices"]] == [0, 1]
    assert all("token_ids" not in c and c["logprobs"] is None for c in body["choices"])


async def test_hints_of_effort_have_no_effect_and_are_counted(client):
    plain = await client.chat(max_tokens=5, seed=3, return_token_ids=True)
    hinted = await client.chat(
        max_tokens=5, seed=3, return_token_ids=True, reasoning_effort="low", verbosity="low"
    )
    assert hinted["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    assert client.engine.stats.hints == 1


async def test_tool_calls(client, policy):
    fields = {"tools": [TOOL], "guided_choice": [CALLS], "max_tokens": 200, "return_token_ids": True}
    body = await client.chat(**fields, seed=1)
    message = body["choices"][0]["message"]
    assert body["choices"][0]["finish_reason"] == "tool_calls" and message["content"] == "Sure."
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":1,  "b": 22}'}
    ids = body["choices"][0]["token_ids"]
    assert ids[-1] in policy.tokenizer.eos_ids and policy.tokenizer.decode(ids[:-1]) == CALLS
    again = await client.chat(**fields, seed=1)
    assert again["choices"][0]["message"] == message
    other = await client.chat(**fields, seed=2)
    assert other["choices"][0]["message"]["tool_calls"][0]["id"] != message["tool_calls"][0]["id"]
    # The same text without tools, or with tool_choice none, is plain text.
    for change in ({"tools": None}, {"tool_choice": "none"}):
        plain = await client.chat(**{**fields, **change})
        assert plain["choices"][0]["message"]["content"] == CALLS
        assert plain["choices"][0]["finish_reason"] == "stop"


async def test_a_malformed_call_is_text_with_a_reason(client):
    text = "<tool_call>{oops}</tool_call>"
    body = await client.chat(tools=[TOOL], guided_choice=[text], max_tokens=200)
    choice = body["choices"][0]
    assert choice["message"]["content"] == text and choice["finish_reason"] == "stop"
    assert len(choice["tool_call_errors"]) == 1


async def test_a_conversation_with_tools_reuses_its_prefix(client):
    either = [CALLS, CALLS.replace("22", "23")]
    first = await client.chat(tools=[TOOL], guided_choice=either, max_tokens=200, return_token_ids=True)
    message = first["choices"][0]["message"]
    messages = [
        USER,
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "23"},
    ]
    second = await client.chat(messages=messages, tools=[TOOL], max_tokens=5, return_token_ids=True)
    context = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    assert second["prompt_token_ids"][: len(context)] == context
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == len(first["prompt_token_ids"]), "a choice is not decoded: the answer is not cached"


async def test_completions(client, policy):
    ids = policy.tokenizer.encode("The user")
    body = await client.post(
        "/v1/completions",
        {"prompt": ["The user", ids], "max_tokens": 4, "n": 2, "seed": 1, "logprobs": 1, "ignore_eos": True,
         "return_token_ids": True},
    )  # fmt: skip
    assert [c["index"] for c in body["choices"]] == [0, 1, 2, 3]
    texts = [c["text"] for c in body["choices"]]
    assert texts[:2] == texts[2:] and texts[0] != texts[1]
    for choice in body["choices"]:
        assert choice["prompt_token_ids"] == ids and len(choice["token_ids"]) == 4
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(
            logprobs_of(policy, ids, choice["token_ids"]), abs=1e-5
        )
        assert len(choice["logprobs"]["text_offset"]) == len(choice["logprobs"]["top_logprobs"]) == 4
    assert body["usage"] == {
        "prompt_tokens": 2 * len(ids), "completion_tokens": 16, "total_tokens": 2 * len(ids) + 16,
        "prompt_tokens_details": body["usage"]["prompt_tokens_details"],
    }  # fmt: skip
    plain = await client.post("/v1/completions", {"prompt": ids})
    assert plain["usage"]["completion_tokens"] <= 16 and plain["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (schema_format({"not": {}}), "response_format"),
        (schema_format({"type": "array", "uniqueItems": True}), "response_format"),
        (schema_format({"$ref": "#/nowhere"}), "response_format"),
        (schema_format("]"), "response_format.json_schema.schema"),
        ({"guided_regex": "(?=a)b"}, "structured_outputs.regex"),
        ({"guided_regex": 1}, "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "guided_choice": ["a"]}, "structured_outputs"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "a"}, "tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"guided_regex": "a", "min_tokens": 1}, None),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": 0}, "parallel_tool_calls"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"echo": True}, "echo"),
        ({"unknown_thing": 1}, "unknown_thing"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, None),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": True}, "n"),
        ({"n": 0}, None),
        ({"n": 0, "stream": True}, None),
        ({"stop": [""]}, "stop"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, None),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "who?"}]}, "messages"),
        ({"messages": [USER, {"role": "system", "content": "late"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(client, fields, param):
    error = (await client.chat(status=400, **fields))["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param and error["message"]


async def test_fields_without_effect_are_taken(client):
    await client.chat(
        user="me", metadata={"a": "b"}, response_format={"type": "text"}, unknown=None, max_tokens=1
    )


async def test_a_prompt_too_long_gives_numbers(client):
    for stream in (False, True):
        error = await client.chat(400, messages=[{"role": "user", "content": "é" * 400}], stream=stream)
        assert error["error"]["code"] == "context_length_exceeded"
        assert "320 tokens" in error["error"]["message"]


@pytest.mark.parametrize("prompt", [None, "", [], [[]], [-1], [10**6], [1.5], [[1], "a", 3]])
async def test_bad_prompts(client, prompt):
    error = await client.post("/v1/completions", {"prompt": prompt}, 400)
    assert error["error"]["param"] == "prompt"


async def test_errors_in_the_shape_of_openai(client):
    for data, status in ((b"{", 400), (b"[]", 400), (b"\xff", 400), (b" " * (17 * 2**20), 413)):
        error = await client.post(
            "/v1/chat/completions", status=status, json=None, data=io.BytesIO(data), headers=JSON
        )
        assert set(error["error"]) == {"message", "type", "param", "code"}
    assert (await client.chat(404, model="nobody"))["error"]["code"] == "model_not_found"
    assert "nobody" in (await client.chat(404, model="nobody"))["error"]["message"]
    assert "error" in await client.get("/v1/nothing", 404)
    assert "error" in await client.get("/v1/chat/completions", 405)


async def test_state_routes(client):
    models = await client.get("/v1/models")
    assert models["data"][0]["id"] == "tiny" and models["data"][0]["max_model_len"] == 320
    assert await client.get("/health") == {"status": "ok"}
    await client.chat(max_tokens=2, ignore_eos=True)
    assert (await client.get("/metrics"))["policies"]["tiny"]["generated_tokens"] == 2
    client.engine.close()
    assert (await client.get("/health", 503))["closed"] == {"tiny": "it was closed"}
    assert (await client.chat(500))["error"]["type"] == "server_error"


async def test_admin_routes_need_the_token(client, policy):
    for headers in ({}, {ADMIN_HEADER: "wrong"}, {ADMIN_HEADER: "sécret"}):
        await client.get("/agl/version", 403, headers=headers)
        await client.post("/agl/weights?version=1", status=403, data=b"x", headers=headers)
    runner, address = await serve(create_app({"tiny": client.engine}))
    async with client.session.get(address + "/agl/version", headers=ADMIN) as answer:
        assert answer.status == 403
    await runner.cleanup()
    assert await client.get("/agl/version", headers=ADMIN) == {"policy": "tiny", "version": 0}


async def test_new_weights_over_http(client):
    other = small_policy(seed=1)
    with client.weights.publish(state(other.model)) as handover:
        sent = msgspec.to_builtins(handover)
        done = await client.post("/agl/weights?policy=tiny&version=3", sent, headers=ADMIN)
    assert done == {"policy": "tiny", "version": 3}
    body = await client.chat(max_tokens=5, return_token_ids=True, logprobs=True)
    assert body["policy_version"] == 3
    got = [e["logprob"] for e in body["choices"][0]["logprobs"]["content"]]
    want = logprobs_of(other, body["prompt_token_ids"], body["choices"][0]["token_ids"])
    assert got == pytest.approx(want, abs=1e-5)
    for query, change, status, why in (
        ("version=2", {}, 400, "below the present version"),
        ("", {}, 400, "version=<number>"),
        ("version=4&mode=now", {}, 400, "drain"),
        ("version=4&policy=x", {}, 404, "no policy"),
        ("version=4", {"words": 1}, 400, "add up to"),
        ("version=4", {"size": 8}, 400, "bytes, not 8"),
        ("version=4", {"file": 1}, 400, "has 0 bytes"),
        ("version=4", {"file": 3}, 400, "no file 3"),
        ("version=4", {"path": "/etc/passwd"}, 400, "unknown field `path`"),
    ):
        error = await client.post(f"/agl/weights?{query}", sent | change, status, headers=ADMIN)
        assert why in error["error"]["message"]
    assert (await client.get("/agl/version", headers=ADMIN))["version"] == 3


async def test_pause_and_resume_over_http(client):
    await client.post("/agl/pause", headers=ADMIN)
    waiting = asyncio.ensure_future(client.chat(max_tokens=2))
    while client.engine.status()["waiting"] == 0:
        await asyncio.sleep(0)
    assert not waiting.done()
    await client.post("/agl/resume", headers=ADMIN)
    assert (await waiting)["choices"]


async def test_a_client_that_goes_away_frees_its_slot(client):
    await client.post("/agl/pause", headers=ADMIN)
    task = asyncio.ensure_future(client.chat(max_tokens=200))
    while client.engine.status()["waiting"] == 0:
        await asyncio.sleep(0)
    task.cancel()
    cancelled = threading.Event()
    while not cancelled.is_set():
        await asyncio.sleep(0)
        if client.engine.status()["cancelled"] == 1:
            cancelled.set()
    await client.post("/agl/resume", headers=ADMIN)
    assert (await client.chat(max_tokens=2))["choices"]


async def test_routing_by_policy_name(policy):
    other = small_policy(seed=1)
    with (
        Engine(policy, slots=2, name="a", max_len=128) as a,
        Engine(other, slots=2, name="b", max_len=128) as b,
    ):
        runner, address = await serve(create_app({"a": a, "b": b}))
        async with aiohttp.ClientSession() as session:
            client = Client(session, address, a, None)
            for name, p in (("a", policy), ("b", other)):
                body = await client.chat(model=name, max_tokens=5, logprobs=True, return_token_ids=True)
                got = [e["logprob"] for e in body["choices"][0]["logprobs"]["content"]]
                ids = body["choices"][0]["token_ids"]
                assert got == pytest.approx(logprobs_of(p, body["prompt_token_ids"], ids), abs=1e-5)
            assert "['a', 'b']" in (await client.chat(404))["error"]["message"]
        await runner.cleanup()


ASK = b'{"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}'
CHAT = "/v1/chat/completions"


async def test_web_pages_are_refused(client):
    for path in (CHAT, "/v1/completions", "/tokenize"):
        await pages_are_refused(client.address, "POST", path, ASK)
    await programs_are_served(client.address, "POST", CHAT, ASK)
    rebound = request("GET", "/metrics", {"Host": "evil.example"})
    assert (await send(client.address, rebound)).status == 403


async def test_a_token_opens_everything_but_the_drivers_doors(policy):
    with Engine(policy, slots=2, max_len=320, name="tiny") as engine:
        token = "a token of more than sixteen characters"
        app = create_app({"tiny": engine}, admin_token="secret", token=token)
        runner, address = await serve(app, "0.0.0.0")
        url = address.replace("0.0.0.0", "127.0.0.1")
        named = {"Host": "engine.example", "Content-Type": "application/json"}
        assert (await send(url, request("POST", CHAT, named, ASK))).status == 401
        assert (await send(url, request("GET", "/health", named))).status == 200
        keyed = {**named, "Authorization": f"Bearer {token}"}
        assert (await send(url, request("POST", CHAT, keyed, ASK))).status == 200
        assert (await send(url, request("POST", "/agl/pause", keyed))).status == 403
        wrong = {**named, "Authorization": "Bearer " + token[:-1]}
        assert (await send(url, request("GET", "/metrics", wrong))).status == 401
        await runner.cleanup()


async def test_an_interface_wants_a_token(policy):
    with Engine(policy, slots=2, max_len=320, name="tiny") as engine:
        with pytest.raises(ValueError, match=r"the engine on 0\.0\.0\.0 without a token.*AGL_LOCAL_TOKEN"):
            await serve(create_app({"tiny": engine}), "0.0.0.0")
        with pytest.raises(ValueError, match="AGL_LOCAL_TOKEN is empty"):
            create_app({"tiny": engine}, token="")


def test_the_command_says_so_before_it_loads_a_policy(capsys, monkeypatch, tmp_path):
    missing = str(tmp_path / "missing")
    assert main(["--policy", missing, "--host", "0.0.0.0"]) == 2
    assert "the engine on 0.0.0.0 without a token" in capsys.readouterr().err
    monkeypatch.setenv("AGL_LOCAL_TOKEN", "")
    assert main(["--policy", missing]) == 2
    assert "AGL_LOCAL_TOKEN is empty" in capsys.readouterr().err


async def test_bodies_within_bounds(client):
    """The same bounds as the gateway's: a 4xx, and the engine goes on."""
    named = {"Host": "localhost", **JSON}
    deep = b'{"messages": ' + b"[" * 200 + b"]" * 200 + b"}"
    endless = b'{"messages": ' + b"[" * 200_000
    for body, headers, status in (
        (deep, named, 400),
        (endless, named, 400),
        (b"{}", {**named, "Content-Encoding": "gzip"}, 400),
        (b"{}", {**named, "Content-Encoding": "br"}, 415),
        (b"zz\r\n", {**named, "Transfer-Encoding": "chunked", "Content-Length": ""}, 400),
    ):
        said = await send(client.address, request("POST", CHAT, headers, body))
        assert said.status == status, said
    packed = {**named, "Content-Encoding": "gzip"}
    assert (await send(client.address, request("POST", CHAT, packed, gzip.compress(ASK)))).status == 200
