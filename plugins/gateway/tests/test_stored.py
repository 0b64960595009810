"""Requests that refer to earlier answers, and these as objects, as the openai SDK asks for them."""

import json
from types import SimpleNamespace

import aiohttp
import pytest

pytest.importorskip("openai")
import openai
from agl_gateway.apis import history
from agl_testing import ScriptedModelServer
from core.gateway.conftest import SECRET
from openai import AsyncOpenAI

from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Span

TOOL = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":  1}'}}
FORGED = [
    {"kind": "append", "messages": [{"content": "no role"}]},
    {"kind": "append", "messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
    {"kind": "append", "messages": [{"role": "assistant", "tool_calls": 3}]},
    {"kind": "replace", "index": -1},
    {"kind": "replace", "index": 99},
]


@pytest.fixture
async def store(tmp_path):
    store = SQLiteStore(tmp_path / "store.sqlite")
    yield store
    await store.close()


@pytest.fixture
async def scene(store):
    """A gateway before a scripted engine; ``start`` starts an attempt, ``restart`` another gateway."""
    keys, gateways, clients = Keys(SECRET), [], []
    async with ScriptedModelServer() as engine:
        scene = SimpleNamespace(store=store, engine=engine)

        async def restart():
            for gateway in gateways:
                await gateway.stop()
            gateway = Gateway(store, keys)
            gateway.add_route(Upstream(url=engine.url, model="scripted"))
            gateways[:] = [gateway]
            scene.gateway, scene.url = gateway, await gateway.start()

        async def start():
            lease = await store.start_rollout({"q": 1}, worker_id="w")
            rollout, attempt = lease.rollout, lease.attempt
            info = AttemptInfo.of(rollout, attempt, {})
            if info.attempt_id not in scene.gateway._attempts._open:
                scene.gateway.open_attempt(info)
            key = keys.mint(rollout.rollout_id, attempt.attempt_id, fence=attempt.fence)
            found = SimpleNamespace(rollout_id=rollout.rollout_id, attempt_id=attempt.attempt_id, key=key)
            found.client = lambda: clients.append(c := AsyncOpenAI(base_url=scene.url, api_key=key)) or c
            found.calls = lambda: store.query_calls(rollout.rollout_id)
            return found

        await restart()
        scene.restart, scene.start = restart, start
        yield scene
        for client in clients:
            await client.close()
        await gateways[0].stop()


def texts(engine, n=-1):
    return [(m["role"], m["content"]) for m in engine.log[n].body["messages"]]


def extends(later, earlier):
    whole = [*earlier.prompt_ids, *earlier.response_ids]
    return list(later.prompt_ids)[: len(whole)] == whole


# -------------------------------------------------------------------------------------- previous_response_id
@pytest.mark.parametrize("stream", [False, True])
async def test_a_continued_answer_is_the_whole_conversation_and_extends_its_row(scene, stream):
    attempt = await scene.start()
    client = attempt.client()

    async def ask(text, **more):
        asked = {"model": "m", "input": text, "instructions": "be kind", **more}
        if not stream:
            return await client.responses.create(**asked)
        async with client.responses.stream(**asked) as events:
            return await events.get_final_response()

    scene.engine.reply = lambda body: f"answer {len(scene.engine.log)}"
    first = await ask("one")
    second = await ask("two", previous_response_id=first.id)
    third = await ask("three", previous_response_id=second.id)
    assert first.id.startswith("resp_") and len({first.id, second.id, third.id}) == 3
    assert third.previous_response_id == second.id and third.store is True
    said = [("system", "be kind"), ("user", "one"), ("assistant", "answer 1"), ("user", "two")]
    assert texts(scene.engine) == [*said, ("assistant", "answer 2"), ("user", "three")]
    calls = await attempt.calls()
    assert extends(calls[1], calls[0]) and extends(calls[2], calls[1])
    for call, exchange, answer in zip(calls, scene.engine.log, (first, second, third), strict=True):
        assert list(call.prompt_ids) == exchange.prompt_ids
        assert list(call.response_ids) == exchange.answers[0].ids and call.response_id == answer.id
    assert calls[1].edited == {"api": "responses", "instructions": True, "continues": first.id}


async def test_two_requests_may_continue_one_answer(scene):
    client = (await scene.start()).client()
    first = await client.responses.create(model="m", input="one")
    for text in ("left", "right"):
        await client.responses.create(model="m", input=text, previous_response_id=first.id)
        assert texts(scene.engine) == [("user", "one"), ("assistant", "ok"), ("user", text)]


async def test_instructions_belong_to_one_request(scene):
    client = (await scene.start()).client()
    first = await client.responses.create(model="m", input="one", instructions="be kind")
    await client.responses.create(model="m", input="two", previous_response_id=first.id)
    assert texts(scene.engine)[0] == ("user", "one")


async def test_tools_go_on_from_the_call_as_the_model_wrote_it(scene):
    attempt = await scene.start()
    client = attempt.client()
    scene.engine.reply = lambda body: (
        {"role": "assistant", "content": None, "tool_calls": [CALL]} if len(scene.engine.log) == 1 else "2"
    )
    first = await client.responses.create(model="m", input="1 + 1", tools=[TOOL])
    result = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "2"}
    await client.responses.create(model="m", input=[result], tools=[TOOL], previous_response_id=first.id)
    assert scene.engine.log[1].body["messages"][1]["tool_calls"][0]["function"] == CALL["function"]
    calls = await attempt.calls()
    assert extends(calls[1], calls[0])


async def test_items_may_be_named_instead_of_sent(scene):
    client = (await scene.start()).client()
    scene.engine.reply = lambda body: {"role": "assistant", "content": "see", "tool_calls": [CALL]}
    first = await client.responses.create(model="m", input="1 + 1", tools=[TOOL])
    named = [{"type": "item_reference", "id": item.id} for item in first.output]
    result = {"type": "function_call_output", "call_id": "c1", "output": "2"}
    asked = [{"role": "user", "content": "1 + 1"}, *named, result]
    await client.responses.create(model="m", input=asked, tools=[TOOL])
    turn = scene.engine.log[1].body["messages"][1]
    assert (turn["content"], turn["tool_calls"]) == ("see", [CALL])
    with pytest.raises(openai.NotFoundError, match="Item with id 'msg_x' not found"):
        await client.responses.create(model="m", input=[{"type": "item_reference", "id": "msg_x"}])


async def test_what_is_not_stored_cannot_be_referred_to(scene):
    attempt = await scene.start()
    client = attempt.client()
    answer = await client.responses.create(model="m", input="one", store=False)
    assert answer.store is False
    with pytest.raises(openai.NotFoundError) as refused:
        await client.responses.create(model="m", input="two", previous_response_id=answer.id)
    assert refused.value.code == "previous_response_not_found"
    assert refused.value.type == "not_found_error" and answer.id in str(refused.value)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)
    item = {"type": "item_reference", "id": answer.output[0].id}
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="m", input=[item])
    assert len(await attempt.calls()) == 1  # and the ledger has the others
    assert (await scene.store.counts(attempt.rollout_id))["refused"]["previous_response_not_found"] == 2


async def test_an_answer_that_failed_cannot_be_continued(scene):
    client = (await scene.start()).client()
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="m", input="two", previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError, match="exclude each other"):
        asked = {"previous_response_id": "resp_1", "conversation": "conv_1"}
        await client.responses.create(model="m", input="two", **asked)


# --------------------------------------------------------------------------------------------------- objects
async def test_an_answer_can_be_retrieved(scene):
    client = (await scene.start()).client()
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}
    asked = {"temperature": 0.5, "max_output_tokens": 50, "tools": [TOOL], "text": form}
    first = await client.responses.create(model="m", input="one", instructions="be kind", **asked)
    answer = await client.responses.create(model="m", input="two", previous_response_id=first.id)
    found = await client.responses.retrieve(first.id)
    loose = {"created_at", "model"}
    assert found.model_dump(exclude=loose) == first.model_dump(exclude=loose) | {
        "tools": found.model_dump()["tools"]
    }
    assert found.tools[0].name == "add" and found.instructions == "be kind"
    assert (await client.responses.retrieve(answer.id)).previous_response_id == first.id


async def test_the_input_of_an_answer_is_listed_in_pages(scene):
    client = (await scene.start()).client()
    first = await client.responses.create(model="m", input="one", instructions="be kind")
    answer = await client.responses.create(model="m", input="two", previous_response_id=first.id)
    page = await client.responses.input_items.list(answer.id, order="asc", limit=2)
    items = [item async for item in page]
    assert page.has_more and [item.role for item in items] == ["user", "assistant", "user"]
    assert [item.content[0].text for item in items] == ["one", "ok", "two"]
    newest = await client.responses.input_items.list(answer.id, limit=1)
    assert newest.data[0].content[0].text == "two"
    with pytest.raises(openai.BadRequestError, match="limit must be"):
        await client.responses.input_items.list(answer.id, limit=1000)


async def test_a_deleted_answer_is_gone(scene):
    attempt = await scene.start()
    client = attempt.client()
    answer = await client.responses.create(model="m", input="one")
    later = await client.responses.create(model="m", input="two", previous_response_id=answer.id)
    await client.responses.delete(answer.id)
    for again in (False, True):
        if again:
            await scene.restart()
            client = attempt.client()
        with pytest.raises(openai.NotFoundError):
            await client.responses.create(model="m", input="three", previous_response_id=answer.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(answer.id)
        await client.responses.create(model="m", input="three", previous_response_id=later.id)
    assert len(await attempt.calls()) == 4


# ---------------------------------------------------------------------------------------------- conversations
async def test_a_conversation_grows_with_its_calls(scene):
    attempt = await scene.start()
    client = attempt.client()
    hello = {"type": "message", "role": "developer", "content": "be kind"}
    conversation = await client.conversations.create(items=[hello], metadata={"topic": "sums"})
    assert conversation.metadata == {"topic": "sums"} and conversation.id.startswith("conv_")
    for text in ("one", "two"):
        answer = await client.responses.create(model="m", input=text, conversation=conversation.id)
    assert answer.conversation.id == conversation.id
    said = [("system", "be kind"), ("user", "one"), ("assistant", "ok"), ("user", "two")]
    assert texts(scene.engine) == said
    calls = await attempt.calls()
    assert extends(calls[1], calls[0]) and calls[1].edited["continues"] == conversation.id
    items = [item async for item in await client.conversations.items.list(conversation.id, order="asc")]
    assert [item.content[0].text for item in items] == ["be kind", "one", "ok", "two", "ok"]
    assert (await client.conversations.retrieve(conversation.id)).created_at == conversation.created_at


async def test_a_conversations_items_and_metadata_can_be_changed(scene):
    attempt = await scene.start()
    client = attempt.client()
    conversation = await client.conversations.create()
    await client.responses.create(model="m", input="one", conversation=conversation.id)
    said = {"type": "message", "role": "user", "content": "two"}
    added = await client.conversations.items.create(conversation.id, items=[said])
    assert [item.content[0].text for item in added.data] == ["two"]
    (newest,) = (await client.conversations.items.list(conversation.id, limit=1)).data
    assert newest.id == added.data[0].id
    assert (await client.conversations.items.retrieve(newest.id, conversation_id=conversation.id)) == newest
    first = (await client.conversations.items.list(conversation.id, order="asc", limit=1)).data[0]
    await client.conversations.items.delete(first.id, conversation_id=conversation.id)
    await client.conversations.update(conversation.id, metadata={"a": "b"})
    for again in (False, True):
        if again:
            await scene.restart()
            client = attempt.client()
        assert (await client.conversations.retrieve(conversation.id)).metadata == {"a": "b"}
        items = (await client.conversations.items.list(conversation.id, order="asc")).data
        assert [item.content[0].text for item in items] == ["ok", "two"]
    await client.responses.create(model="m", input="three", conversation=conversation.id)
    assert texts(scene.engine) == [("assistant", "ok"), ("user", "two"), ("user", "three")]
    await client.conversations.delete(conversation.id)
    with pytest.raises(openai.NotFoundError, match="Conversation with id"):
        await client.responses.create(model="m", input="four", conversation=conversation.id)
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(conversation.id)


async def test_one_call_at_a_time_in_a_conversation(scene):
    client = (await scene.start()).client()
    conversation = await client.conversations.create()
    refused = []

    async def reply(body):
        with pytest.raises(openai.BadRequestError) as error:
            await client.responses.create(model="m", input="two", conversation=conversation.id)
        refused.append(error.value.code)
        with pytest.raises(openai.BadRequestError):
            await client.conversations.delete(conversation.id)
        return "ok"

    scene.engine.reply = reply
    await client.responses.create(model="m", input="one", conversation=conversation.id)
    assert refused == ["conversation_locked"]
    scene.engine.reply = lambda body: "ok"
    await client.responses.create(model="m", input="two", conversation=conversation.id)


# --------------------------------------------------------------------------------------------- other attempts
async def test_an_attempt_reaches_no_other_attempts_data(scene):
    mine, other = await scene.start(), await scene.start()
    client, stranger = mine.client(), other.client()
    conversation = await client.conversations.create()
    answer = await client.responses.create(model="m", input="secret", conversation=conversation.id)
    items = (await client.conversations.items.list(conversation.id)).data
    named = [{"type": "item_reference", "id": answer.output[0].id}]
    said = {"type": "message", "role": "user", "content": "x"}
    tries = [
        lambda: stranger.responses.create(model="m", input="x", previous_response_id=answer.id),
        lambda: stranger.responses.create(model="m", input="x", conversation=conversation.id),
        lambda: stranger.responses.create(model="m", input=named),
        lambda: stranger.responses.retrieve(answer.id),
        lambda: stranger.responses.delete(answer.id),
        lambda: stranger.responses.input_items.list(answer.id),
        lambda: stranger.conversations.retrieve(conversation.id),
        lambda: stranger.conversations.update(conversation.id, metadata={}),
        lambda: stranger.conversations.delete(conversation.id),
        lambda: stranger.conversations.items.list(conversation.id),
        lambda: stranger.conversations.items.create(conversation.id, items=[said]),
        lambda: stranger.conversations.items.retrieve(items[0].id, conversation_id=conversation.id),
        lambda: stranger.conversations.items.delete(items[0].id, conversation_id=conversation.id),
    ]
    for attempt in tries:
        with pytest.raises(openai.NotFoundError) as refused:
            await attempt()
        assert "secret" not in str(refused.value) and "not_found" in refused.value.code
    assert len(scene.engine.log) == 1 and not await other.calls()
    assert (await client.responses.retrieve(answer.id)).output_text == "ok"


async def test_objects_need_a_key(scene):
    async with aiohttp.ClientSession() as session, session.get(f"{scene.url}/responses/resp_1") as response:
        assert response.status == 401 and (await response.json())["error"]["code"] == "no-key"


# ----------------------------------------------------------------------------------------------------- memory
async def test_a_restarted_gateway_goes_on(scene):
    attempt = await scene.start()
    client = attempt.client()
    conversation = await client.conversations.create()
    inside = await client.responses.create(model="m", input="in", conversation=conversation.id)
    first = await client.responses.create(model="m", input="one", instructions="be kind")
    await scene.restart()
    client = attempt.client()
    await client.responses.create(
        model="m", input="two", previous_response_id=first.id, instructions="be kind"
    )
    calls = await attempt.calls()
    assert extends(calls[2], calls[1]) and [call.sequence for call in calls] == [0, 1, 2]
    await client.responses.create(model="m", input="more", conversation=conversation.id)
    assert texts(scene.engine) == [("user", "in"), ("assistant", "ok"), ("user", "more")]
    assert (await client.responses.retrieve(inside.id)).conversation.id == conversation.id


async def test_memory_is_bounded_and_what_is_dropped_is_read_again(scene, monkeypatch):
    monkeypatch.setattr(history, "BUDGET", 2_000)
    attempt = await scene.start()
    client = attempt.client()
    conversation = await client.conversations.create()
    answers = []
    for n in range(12):
        answers.append(await client.responses.create(model="m", input=f"{n} {'x' * 500}"))
        await client.responses.create(model="m", input=f"turn {n}", conversation=conversation.id)
    held = scene.gateway._attempts._open[attempt.attempt_id].part(history.History)
    assert held._bytes <= 2_000 and len(held._kept) < 6
    await client.responses.create(model="m", input="again", previous_response_id=answers[0].id)
    assert texts(scene.engine)[0][1].startswith("0 x")
    await client.responses.create(model="m", input="end", conversation=conversation.id)
    turns = [text for role, text in texts(scene.engine) if role == "user"]
    assert turns == [*(f"turn {n}" for n in range(12)), "end"]


async def test_a_span_of_the_agents_own_is_no_change(scene, caplog):
    attempt = await scene.start()
    client = attempt.client()
    conversation = await client.conversations.create(items=[{"role": "user", "content": "one"}])
    for change in ("{}", "no json", *FORGED):
        given = change if isinstance(change, str) else json.dumps({**change, "of": conversation.id})
        span = Span(
            rollout_id=attempt.rollout_id,
            attempt_id=attempt.attempt_id,
            name=history.CONVERSATION_SPAN,
            attributes={history.CONVERSATION_CHANGE: given},
        )
        await scene.store.add_many_spans([span])
    await scene.restart()
    items = (await attempt.client().conversations.items.list(conversation.id)).data
    assert [item.content[0].text for item in items] == ["one"] and "is not ours" in caplog.text


async def test_a_store_that_fails_is_said_and_may_be_asked_again(scene, monkeypatch):
    attempt = await scene.start()
    client = attempt.client().with_options(max_retries=0)

    async def broken(*args, **kwargs):
        raise RuntimeError("disk on fire")

    for method in ("query_calls", "spans", "add_many_spans"):
        with monkeypatch.context() as patch:
            patch.setattr(scene.store, method, broken)
            with pytest.raises(openai.InternalServerError) as refused:
                if method == "add_many_spans":
                    await client.conversations.create()
                else:
                    await client.responses.retrieve(f"resp_{attempt.attempt_id}-0")
        assert refused.value.status_code == 503 and refused.value.code == "store-failed"
        assert "fire" not in str(refused.value)
    await scene.store.update_attempt(attempt.rollout_id, attempt.attempt_id, AttemptStatus.SUCCEEDED)
    with pytest.raises(openai.ConflictError, match="ended"):
        await client.conversations.create()
