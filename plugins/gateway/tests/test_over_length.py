"""The over-length policy on real histories: refused, dropped or cut, before inference, and recorded."""

import json

import pytest
from agl_gateway.edits.over_length import Window
from agl_gateway.edits.route import RouteEdits, RouteSection
from aiohttp import web
from contract.model_server import ModelServer, prompt_of

from agentlightning.credit.forest import build_forest
from agentlightning.credit.rollout_reward import failure_of
from agentlightning.gateway import Upstream
from agentlightning.gateway.route import CallEdits
from agentlightning.train.config import from_fields
from agentlightning.types import Record, Reward, Rollout, RolloutStatus
from agentlightning.types.base import ConfigError
from plugins.gateway.tests.test_window import HISTORIES, no_orphans, said


def length(messages, tools=None):
    return len(prompt_of({"messages": messages, "tools": tools}))


@pytest.fixture
async def served(world):
    """``served(max_model_len, **policy)``: the gateway before an engine that counts; its log."""
    servers = []

    async def serve(max_model_len, reply=lambda body: "好的", **policy):
        server = ModelServer(reply, max_model_len=max_model_len)
        servers.append(await server.start())
        world.gateway.add_route(Upstream(url=server.url, model="tiny", settings=RouteSection(**policy)))
        return server

    yield serve
    for server in servers:
        await server.stop()


def error(answer):
    return json.loads(answer.raw)["error"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", HISTORIES)
async def test_truncate_sends_what_fits(world, served, name, stream):
    history = HISTORIES[name]
    whole = length(history["messages"], history["tools"])
    limit = whole * 2 // 3
    server = await served(limit, over_length="truncate", reserve=16)
    got = await world.post(history | {"stream": stream})
    assert got.status == 200
    (exchange,), (call,) = server.log, world.store.calls
    sent = exchange.body["messages"]
    assert len(exchange.prompt_ids) + 16 <= limit and no_orphans(sent)
    gone = [i for a, b in call.edited["dropped"] for i in range(a, b)]
    assert gone and sent == [m for i, m in enumerate(history["messages"]) if i not in gone]
    assert call.edited["over_length"] == "truncate" and call.edited["tokens"] == [
        whole,
        len(exchange.prompt_ids),
    ]
    assert call.prompt_ids == exchange.prompt_ids, "recorded is what was really sent"
    assert call.request["messages"] == history["messages"], "and what the agent asked"
    assert (call.status, call.masked) == ("ok", None)
    window = Window(history["messages"])
    blocks = next(n for n in range(len(window) + 1) if window.without(n) == sent)
    assert length(window.without(blocks - 1), history["tools"]) + 16 > limit - limit // 4, (
        "no more than it must"
    )
    shown = (await world.metrics())["over_length"]
    assert shown == {"truncated": 1, "messages": len(gone)}


@pytest.mark.parametrize("name", HISTORIES)
async def test_later_turns_keep_the_cut_and_merge(world, served, name):
    """Each turn of a long chat sends its whole history. The cut stays where it was until it does not do any
    more, so that most turns extend the one before: few rows, each answer trained once, each break named.
    """
    history, tools = HISTORIES[name]["messages"], HISTORIES[name]["tools"]
    turns = [i for i, m in enumerate(history) if m["role"] == "assistant"]
    says = iter([history[i] for i in turns])
    limit = length(history, tools) * 3 // 4
    await served(limit, lambda body: next(says), over_length="truncate")
    for end in turns:
        assert (await world.post({"messages": history[:end], "tools": tools})).status == 200
    calls = world.store.calls
    cuts = [call.edited["dropped"] for call in calls if "dropped" in call.edited]
    fresh = len({json.dumps(cut) for cut in cuts})
    assert cuts and cuts == sorted(cuts, key=lambda cut: cut[0][1]), "what is gone stays gone"
    forest = build_forest(calls)
    assert forest.merge_failures == {"truncated": fresh} and len(forest.paths) == 1 + fresh
    assert sorted(c.call_id for p in forest.paths for c in p.own) == sorted(c.call_id for c in calls)
    assert name != "werewolf" or len(cuts) >= 2 * fresh


async def test_two_chats_of_one_agent_have_their_own_cuts(world, served):
    await served(400, over_length="truncate")
    for first in ("早", "晚"):
        chat = [{"role": "system", "content": "s"}, {"role": "user", "content": first}]
        chat += [
            {"role": ("assistant", "user")[i % 2], "content": f"{first}{i} " + "x" * 40} for i in range(9)
        ]
        for end in (8, 11):
            assert (await world.post({"messages": chat[:end]})).status == 200
    assert len(world.gateway._attempts._open["at-1"].edits) == 2


@pytest.mark.parametrize("tools", [-1, 2.5, True, "x", {"a": 1}, [3], [[1]], [{"id": [1]}]])
async def test_tool_calls_that_are_none_are_no_fault_of_the_gateway(world, tools):
    """What they are worth is for the engine to say; here it takes them."""
    chat = [said("system"), said("user", "card"), {**said("assistant", "七" * 90), "tool_calls": tools}]
    chat += [said("assistant", "七" * 90), said("user", "and now?")]
    settings = RouteSection(over_length="truncate", max_len=120)
    world.gateway.add_route(Upstream(url=world.engine.url, model="tiny", settings=settings))

    async def characters(prompt):
        return sum(len(message["content"]) for message in prompt["messages"])

    world.gateway.routes["default"].edits.fitter._ask = characters
    assert (await world.post({"messages": chat})).status == 200
    assert world.store.calls[0].edited["over_length"] == "truncate"


async def test_a_prompt_that_fits_costs_nothing(world, served):
    asked = []
    server = await served(60_000, over_length="truncate", reserve=16)
    count = world.gateway.routes["default"].edits.fitter._ask

    async def counted(body):
        asked.append(body)
        return await count(body)

    world.gateway.routes["default"].edits.fitter._ask = counted
    for _ in range(4):
        assert (await world.post(HISTORIES["calc_x"])).status == 200
    assert len(asked) == 1, "the first tells the window, then bytes prove that it fits"
    assert len(server.log) == 4 and all(call.edited == {} for call in world.store.calls)


async def test_few_counts_however_long_the_chat(world, served):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "card"}]
    chat += [{"role": ("user", "assistant")[i % 2], "content": "七" * (1 + i % 37)} for i in range(400)]
    await served(length(chat) // 2, over_length="truncate")
    asked = []
    count = world.gateway.routes["default"].edits.fitter._ask

    async def counted(body):
        asked.append(body)
        return await count(body)

    world.gateway.routes["default"].edits.fitter._ask = counted
    assert (await world.post({"messages": chat})).status == 200
    assert len(asked) <= 8
    call = world.store.calls[0]
    assert call.edited["dropped"][0][0] == 2 and len(call.edited["dropped"]) == 1


@pytest.mark.parametrize("policy", ["error", "drop"])
@pytest.mark.parametrize("reserve", [0, 8])
@pytest.mark.parametrize("stream", [False, True])
async def test_refused_as_openai_does(world, served, policy, reserve, stream):
    history = HISTORIES["werewolf"]
    whole = length(history["messages"], history["tools"])
    server = await served(whole - 1 + reserve, over_length=policy, reserve=reserve)
    got = await world.post(history | {"stream": stream})
    assert got.status == 400 and got.headers["x-should-retry"] == "false"
    assert (error(got)["code"], error(got)["type"]) == ("context_length_exceeded", "invalid_request_error")
    assert str(whole) in error(got)["message"]
    assert len(server.log) == (0 if reserve else 1), "with a reserve before the engine is asked"
    (call,) = world.store.calls
    assert (call.status, call.masked, call.edited) == ("error", "over-length", {"over_length": policy})
    shown = (await world.metrics())["over_length"]
    assert shown == {"dropped" if policy == "drop" else "refused": 1}


@pytest.mark.parametrize(("policy", "kind"), [("error", None), ("drop", "over-length")])
async def test_drop_leaves_the_rollout_out_even_if_the_agent_went_on(world, served, policy, kind):
    short, long = HISTORIES["calc_x"]["messages"][:2], HISTORIES["calc_x"]["messages"]
    await served(length(short) + 40, over_length=policy)
    assert (await world.post({"messages": long})).status == 400
    assert (await world.post({"messages": short})).status == 200
    rollout = Rollout(rollout_id="ro-1", status=RolloutStatus.SUCCEEDED)
    record = Record(rollout=rollout, calls=world.store.calls, rewards=[Reward(value=1.0)])
    assert failure_of(record) == kind


async def test_a_pinned_turn_that_is_too_long_itself_is_an_error(world, served):
    await served(200, over_length="truncate")
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "长" * 200}]
    chat += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    got = await world.post({"messages": chat})
    assert got.status == 400 and error(got)["code"] == "context_length_exceeded"
    assert "must stay" in error(got)["message"]
    assert world.store.calls[0].masked == "over-length"


async def test_room_is_what_the_agent_asks_up_to_half(world, served):
    history = HISTORIES["spider"]
    whole = length(history["messages"])
    server = await served(whole + 100, over_length="truncate")
    for asked in (50, 200, 10 * whole):
        assert (await world.post(history | {"max_tokens": asked})).status == 200
    sizes = [len(exchange.prompt_ids) for exchange in server.log]
    assert sizes[0] == whole
    assert sizes[1] + 200 <= whole + 100
    assert sizes[2] <= (whole + 100) - (whole + 100) // 2


async def test_own_limit_below_the_engines(world, served):
    history = HISTORIES["werewolf"]
    server = await served(50_000, over_length="truncate", max_len=6_000)
    assert (await world.post(history)).status == 200
    assert len(server.log[0].prompt_ids) < 6_000 < length(history["messages"], history["tools"])


async def test_an_engine_that_cannot_count_is_said_once(world, served, caplog):
    world.gateway.add_route(
        Upstream(url=world.engine.url, model="tiny", settings=RouteSection(over_length="truncate", reserve=8))
    )
    for _ in range(2):
        assert (await world.post(HISTORIES["spider"])).status == 200
    assert caplog.text.count("no POST /tokenize") == 1
    assert (await world.metrics())["over_length"] == {"unchecked": 2}


async def test_an_engine_that_refuses_what_should_have_fitted_is_counted_from_then_on(world, served):
    history = HISTORIES["spider"]
    server = await served(length(history["messages"]) // 2, over_length="truncate", max_len=60_000)
    assert (await world.post(history)).status == 400, "max_len was wrong, and the bytes seemed to prove it"
    assert (await world.post(history)).status == 200
    assert len(server.log) == 2 and world.store.calls[1].edited["over_length"] == "truncate"


async def test_completions_have_no_chatter(world, served):
    await served(100, over_length="truncate")
    got = await world.post({"prompt": "word " * 40}, path="/completions")
    assert got.status == 400 and error(got)["code"] == "context_length_exceeded"
    for prompt in ("short", [5, 6, 7]):
        assert (await world.post({"prompt": prompt}, path="/completions")).status == 200
    got = await world.post({"prompt": list(range(200))}, path="/completions")
    assert got.status == 400 and error(got)["code"] == "context_length_exceeded"


@pytest.mark.parametrize("answer", [b"{", b'{"count": "many"}', b"<html>"])
async def test_a_count_that_cannot_be_read_is_none(world, answer):
    async def tokenize(request):
        return web.Response(body=answer, content_type="application/json")

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    app.router.add_post("/v1/chat/completions", world.engine._serve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    world.gateway.add_route(Upstream(url=url, model="tiny", settings=RouteSection(over_length="truncate")))
    assert (await world.post(HISTORIES["spider"])).status == 200
    assert (await world.metrics())["over_length"] == {"unchecked": 1}
    await runner.cleanup()


async def test_an_engine_that_is_gone_while_it_is_asked_to_count(world):
    world.gateway.add_route(
        Upstream(url="http://127.0.0.1:1/v1", model="m", settings=RouteSection(over_length="truncate"))
    )
    got = await world.post(HISTORIES["spider"])
    assert got.status == 502 and error(got)["code"] == "engine-unreachable"
    assert world.store.calls[0].error.startswith("engine-unreachable")


async def test_a_cut_is_named_as_the_reason_why_turns_do_not_merge(world, served):
    history = HISTORIES["spider"]["messages"]
    await served(length(history) * 2 // 3, over_length="truncate")
    asks = [i for i in range(2, len(history) + 1) if i == len(history) or history[i]["role"] == "assistant"]
    for end in asks:
        assert (await world.post({"messages": history[:end]})).status == 200
    cut = [call.call_id for call in world.store.calls if "dropped" in call.edited]
    assert cut
    links = build_forest(world.store.calls).links
    reasons = {links[call_id].reason for call_id in cut}
    assert reasons <= {"truncated", ""} and "truncated" in reasons


@pytest.mark.parametrize(
    "fields",
    [{"over_length": "cut"}, {"reserve": -1}, {"max_len": 10, "reserve": 10}, {"reasoning": "yes"}],
)
def test_bad_settings_say_so(fields):
    with pytest.raises(ConfigError, match=f"^here: (gateway: )?{[*fields][-1]}: "):
        from_fields(fields, place="here")


async def test_each_route_has_edits_of_its_own(world):
    """What one route has learned of its engine says nothing of another's."""
    one, other = (Upstream(url=world.engine.url, model="tiny", policy=name) for name in "ab")
    assert type(one.edits) is CallEdits, "no gateway serves it"
    for route in (one, other):
        world.gateway.add_route(route)
    assert isinstance(one.edits, RouteEdits) and isinstance(other.edits, RouteEdits)
    assert one.edits.fitter is not other.edits.fitter
    server = await ModelServer(lambda body: "ok", max_model_len=100).start()
    try:
        counting = Upstream(url=server.url, model="tiny", settings=RouteSection(reserve=8))
        world.gateway.add_route(counting)
        assert (await world.post()).status == 200
        assert counting.edits.fitter.window == 100 and one.edits.fitter.window is None
    finally:
        await server.stop()
