"""The service desk: fair tasks, a database for each rollout, a grader of its final state, and two sides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agl_testing import ScriptedModelServer, tool_call
from contract.running import finish, reason, serving

from agentlightning.capture.installation import capturing
from agentlightning.credit.verdicts import verdicts
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.semconv import OBJECT_SPAN
from agentlightning.store import SQLiteStore
from agentlightning.types import LLM, Record, RolloutConfig, Span
from desk.agent import serve
from desk.baseline import DESKS, earned
from desk.customer import scripted
from desk.shop import Shop
from desk.tasks import task, tasks


def test_tasks_are_fair_and_held_out_ones_are_others() -> None:
    made, held_out = tasks(60), tasks(60, held_out=True)
    assert made == tasks(60) and json.loads(json.dumps(made)) == json.loads(json.dumps(tasks(60)))
    means = {name: sum(earned(desk, one) for one in made) / 60 for name, desk in DESKS.items()}
    assert means == {"nothing": 0.5, "obliging": 0.5, "policy": 1.0}
    assert not {str(one["orders"]) for one in made} & {str(one["orders"]) for one in held_out}


def test_what_is_done_too_much_or_to_another_order_earns_nothing() -> None:
    given = next(one for one in tasks(12) if one["gold"] and one["customer"]["wish"] == "refund")
    (name, right), other = given["gold"][0], given["orders"][3]["id"]
    for calls in (
        [(name, right)] * 2,
        [(name, {**right, "order_id": other})],
        [(name, right), ("cancel", {"order_id": other})],
    ):
        assert earned(lambda _, calls=calls: calls, given) == 0.0


def test_a_wrong_call_is_told_and_changes_nothing() -> None:
    shop = Shop(tasks(1)[0]["orders"])
    before = shop.state()
    for name, arguments in (
        ("sell", "{}"),
        ("cancel", "{}"),
        ("cancel", "[1"),
        ("cancel", '{"order_id": "Z1"}'),
        ("refund", '{"order_id": [], "cents": 1}'),
    ):
        assert shop.call(name, arguments).startswith("error: ")
    assert shop.state() == before
    shop.close()


def test_a_customer_gives_the_email_once_and_leaves() -> None:
    one = task(0)["customer"]
    assert one["order"] in str(scripted(one, []))
    assert scripted(one, ["Your email, please?"]) == f"It is {one['email']}."
    assert one["email"] in str(scripted(one, ["What do you want?"]))
    assert scripted(one, ["Done."]) is None and scripted(one, ["Your email?", "Anything else?"]) is None


def obeys(given: dict[str, Any]) -> Any:
    """A desk that asks for the email, does what the policy wants, and says so."""

    def reply(body: dict[str, Any]) -> Any:
        if not body.get("tools"):  # the customer, as a policy
            asked = body["messages"][-1]["content"]
            return (
                "BYE"
                if "Done" in asked
                else f"It is {given['customer']['email']}."
                if "email" in asked
                else "Hello."
            )
        said = [one["role"] for one in body["messages"]]
        if said.count("user") == 1:
            return "What is your email?"
        done = said.count("tool")
        return tool_call(*given["gold"][done]) if done < len(given["gold"]) else "Done."

    return reply


@pytest.mark.parametrize("by", ["script", "policy"])
async def test_both_sides_stand_in_the_rollout_and_the_desk_alone_may_be_trained(by: str) -> None:
    given = next(one for one in tasks(6) if one["gold"])
    store = SQLiteStore(":memory:")
    gateway = Gateway(store, Keys())
    async with ScriptedModelServer(obeys(given)) as engine:
        names = ["policy", *(["customer"] if by == "policy" else [])]
        for name in names:
            gateway.add_route(
                Upstream(policy=name, url=engine.url, model=engine.model, trainable=name == "policy")
            )
        await gateway.start()
        found = await store.add_resources({name: LLM(endpoint=gateway.url, model=name) for name in names})
        asked = {name: name for name in names[1:]}
        with capturing([]):
            async with serving(serve, store, attempt_keys=gateway, policies=asked):
                once = RolloutConfig(max_attempts=1)
                [rollout] = await finish(store, [given], resources_id=found.resources_id, config=once)
        [record] = await store.records([rollout.rollout_id])
        spans = await store.query_spans(rollout.rollout_id)
        why = await reason(store, rollout)
        await gateway.stop()
        await store.close()
    assert rollout.status == "succeeded", why
    assert [one.value for one in record.rewards] == [1.0]
    exact = {call_id for call_id, one in verdicts(record).items() if one.kind == "exact"}
    assert exact == {
        call.call_id for call in record.calls if call.tags["agent"] == "desk"
    }  # what may be trained
    sides(record, list(spans), by)


def sides(record: Record, spans: list[Span], by: str) -> None:
    agents = [call.tags["agent"] for call in record.calls]
    told = [one for one in spans if one.name == OBJECT_SPAN]
    assert agents.count("desk") == 3
    if by == "script":
        assert {*agents} == {"desk"} and len(told) == 3
    else:
        assert agents.count("customer") == 3 and not told
        assert {call.policy for call in record.calls if call.tags["agent"] == "customer"} == {"customer"}
