"""The service desk: fair tasks, a database for each rollout, a grader of its final state, and two sides; the
scripts that stand beside a model, the small policy's teacher, the view, and the runs.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer, tool_call
from contract.running import finish, reason, rolled_out, serving

from agentlightning.capture.installation import capturing
from agentlightning.cli.options import read
from agentlightning.credit.verdicts import verdicts
from agentlightning.gateway import Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.semconv import OBJECT_SPAN
from agentlightning.store import SQLiteStore
from agentlightning.train.configured import configure
from agentlightning.types import LLM, Record, Rollout, RolloutConfig, Span
from agl_examples.views import served_customer
from desk import demo, view
from desk.agent import serve
from desk.baselines import COUNT, DESKS, KEEPS, rewards, strongest_part
from desk.clerk import ASK, PROMISES, REFUSALS, calls, reply, says, understood
from desk.customer import scripted
from desk.shop import NO_ORDER, Shop
from desk.talk import CALLS, REPLIES, Talk, conduct
from desk.tasks import GRANTED, KINDS, RULES, WHOSE, Task, after, broken, grade, task, tasks, wanted
from desk.teacher import ERROR_RATE, MISTAKES, chats
from small_policy.demo import difference

EXAMPLE = Path(view.__file__).parent
ROUND = len(KINDS)


# ------------------------------------------------------------------------------------------- tasks and grader
def test_tasks_are_the_same_each_time_and_held_out_ones_are_others() -> None:
    made, held_out = tasks(60), tasks(60, held_out=True)
    assert made == tasks(60) and json.loads(json.dumps(made)) == json.loads(json.dumps(tasks(60)))
    assert not {str(one["orders"]) for one in made} & {str(one["orders"]) for one in held_out}


def test_half_of_the_wishes_break_one_rule_and_only_that() -> None:
    made = tasks(4 * ROUND)
    assert Counter(one["kind"] for one in made) == Counter(f"{wish}, {rule}" for wish, rule in KINDS * 4)
    for one in made:
        asked = one["customer"]
        order = next(order for order in one["orders"] if order["id"] == asked["order"])
        rule = one["kind"].split(", ")[1]
        assert broken(order, asked["wish"], asked["email"]) == ([] if rule == GRANTED else [rule])
        assert bool(one["gold"]) == (rule == GRANTED) == (wanted(one) != after(one["orders"], []))
    assert sum(bool(one["gold"]) for one in made) == len(made) / 2


def test_an_order_says_by_nothing_but_its_email_address_whose_it_is() -> None:
    made = tasks(20 * ROUND)
    own, foreign = (
        {order["id"][0] for one in made for order in one["orders"]
         if (order["email"] == one["customer"]["email"]) == mine}
        for mine in (True, False)
    )  # fmt: skip
    assert own == foreign


def graded(given: Task, changes: list[tuple[str, dict[str, Any]]]) -> float:
    """The reward of a talk that makes these changes."""
    shop = Shop(given["orders"])
    for name, arguments in changes:
        shop.call(name, json.dumps(arguments))
    try:
        return grade(given, shop)
    finally:
        shop.close()


def test_what_is_done_too_much_or_to_another_order_earns_nothing() -> None:
    given = next(one for one in tasks(ROUND) if one["kind"] == "refund, granted")
    (name, right) = given["gold"][0]
    other = next(one["id"] for one in given["orders"] if one["id"] != right["order_id"])
    assert graded(given, [(name, right)]) == 1.0
    for changes in (
        [],
        [(name, right)] * 2,
        [(name, {**right, "cents": right["cents"] - 1})],
        [(name, {**right, "order_id": other})],
        [(name, right), ("cancel", {"order_id": other})],
    ):
        assert graded(given, changes) == 0.0


def test_a_wrong_call_is_told_and_changes_nothing() -> None:
    shop = Shop(tasks(1)[0]["orders"])
    before = shop.state()
    for name, arguments in (
        ("sell", "{}"),
        ("cancel", "{}"),
        ("cancel", "[1"),
        ("cancel", '{"order_id": "Z1"}'),
        ("look_up", '{"email": "Z1", "order_id": "Z1"}'),
        ("refund", '{"order_id": [], "cents": 1}'),
    ):
        assert shop.call(name, arguments).startswith("error: ")
    assert shop.state() == before
    shop.close()


# ------------------------------------------------------------------------------------------------ the talk
def test_a_customer_gives_the_email_once_and_leaves() -> None:
    one = task(0)["customer"]
    assert one["order"] in str(scripted(one, []))
    assert scripted(one, ["Your email, please?"]) == f"It is {one['email']}."
    assert one["email"] in str(scripted(one, ["What do you want?"]))
    assert scripted(one, ["Done."]) is None and scripted(one, ["Your email?", "Anything else?"]) is None


def test_a_desk_that_calls_for_ever_has_replied_nothing() -> None:
    given = tasks(1)[0]
    messages, _ = conduct(given, lambda messages: calls("look_up", {"email": "Z1", "order_id": "Z1"}))
    assert [one["role"] for one in messages].count("assistant") == CALLS
    talk = Talk(given["orders"])
    for _ in range(REPLIES):
        assert not talk.full
        talk.hear("Hello?")
        talk.take(says("Hello?"))
    assert talk.full and not talk.wants_reply
    talk.close()


# ------------------------------------------------------------------------------------- baselines and teacher
def test_baselines_are_those_of_the_page() -> None:
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    given = tasks(COUNT, held_out=True)
    for name, one in DESKS.items():
        assert f"| {name} | {sum(rewards(one, given)) / COUNT:.3f} |" in page, name
    assert sum(rewards(DESKS[KEEPS], given)) == COUNT
    assert sum(strongest_part(given)) / len(given) == pytest.approx(5 / 6)


@pytest.mark.parametrize("rule", RULES)
def test_a_desk_that_does_not_know_a_rule_errs_where_it_is_broken(rule: str) -> None:
    given = tasks(ROUND)
    found = rewards(partial(reply, slips=(rule,)), given)
    assert found == [float(not one["kind"].endswith(rule)) for one in given]


def test_a_desk_that_promises_changes_no_locker_and_says_so() -> None:
    given = tasks(ROUND)
    found = rewards(partial(reply, slips=(PROMISES,)), given)
    assert found == [float(one["kind"] != "locker, granted") for one in given]


def test_the_clerk_refuses_an_order_that_is_not_there_and_reads_no_other_text() -> None:
    messages = [
        {"role": "user", "content": "Hello. I want to cancel my order Z99."},
        says(ASK),
        {"role": "user", "content": "It is anna@example.org."},
        calls("look_up", {"email": "anna@example.org", "order_id": "Z99"}),
        {"role": "tool", "content": NO_ORDER},
    ]
    assert reply(messages) == says(REFUSALS[WHOSE])
    assert understood("Hello. Please send my order Z99 to locker 417.") == ("locker", "Z99", 417)
    with pytest.raises(ValueError, match="no wish"):
        understood("Sing me a song.")


def test_the_teacher_errs_as_often_as_it_says_and_on_tasks_of_training_alone() -> None:
    drawn = random.Random(f"desk:teacher:1:{ERROR_RATE}")
    told: Counter[tuple[str, bool]] = Counter()
    held_out = {str(one["orders"]) for one in tasks(COUNT, held_out=True)}
    for chat in islice(chats(1, ERROR_RATE), 600):
        slips = [slip for slip in MISTAKES if drawn.random() < ERROR_RATE]
        given = task(drawn.randrange(1_000_000))
        assert chat["messages"] == conduct(given, partial(reply, slips=slips))[0]
        assert str(given["orders"]) not in held_out
        told[given["kind"], rewards(partial(reply, slips=slips), [given]) == [1.0]] += 1
    wrong = {kind for kind, right in told if not right}
    assert wrong == {f"{wish}, {rule}" for wish, rule in KINDS if rule != GRANTED} | {"locker, granted"}
    share = sum(n for (kind, right), n in told.items() if not right and kind in wrong)
    assert 0.6 < share / sum(n for (kind, _), n in told.items() if kind in wrong) < 0.8


# ------------------------------------------------------------------------------------------------- the agent
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
    given = next(one for one in tasks(ROUND) if one["gold"])
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


async def test_the_agent_sends_what_the_teacher_teaches() -> None:
    for kind in ("refund, granted", "cancel, whose"):
        given = next(one for one in tasks(ROUND) if one["kind"] == kind)
        store = SQLiteStore(":memory:")
        async with ScriptedModelServer(lambda body: reply(body["messages"])) as engine:
            rollout, record, why = await rolled_out(serve, given, store, engine)
            sent = engine.log[-1].body["messages"]
        await store.close()
        assert rollout.status == "succeeded", why
        assert [one.value for one in record.rewards] == [1.0]
        taught, _ = conduct(given, reply)
        assert [plain(one) for one in sent] == [plain(one) for one in taught[:-1]]


def plain(message: dict[str, Any]) -> tuple[Any, ...]:
    """What a chat template shows of a message."""
    called = [
        (one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()
    ]
    return message["role"], message.get("content") or "", called


# ---------------------------------------------------------------------------------------------- the view
async def shown(given: Task, script: Any) -> tuple[dict[str, Any], str]:
    """What the page of a rollout shows, and the page."""
    store = SQLiteStore(":memory:")
    async with ScriptedModelServer(lambda body: script(body["messages"])) as engine:
        _, record, why = await rolled_out(serve, given, store, engine)
    await store.close()
    assert not why
    told = view.story(record)
    return told, view.html(told)


async def test_the_view_shows_both_sides_the_tools_and_the_database() -> None:
    given = next(one for one in tasks(ROUND) if one["kind"] == "refund, granted")
    told, page = await shown(given, reply)
    assert [turn.who for turn in told["turns"]] == [
        "customer", "desk", "customer", "tool", "tool", "desk",
    ]  # fmt: skip
    assert told["turns"][3].said.startswith('{"id": ') and told["turns"][4].said == "done"
    changed = [cell for row in told["rows"] for cell in row if cell.before != cell.after]
    assert [(cell.before, cell.after == cell.wanted) for cell in changed] == [(0, True)] and told["right"]
    assert given["customer"]["email"] in page and "wanted:" not in page
    assert not any(mark in page for mark in ("<script", "src=", "href=", "http"))


async def test_the_view_names_what_is_wanted_where_the_desk_did_wrong() -> None:
    given = next(one for one in tasks(ROUND) if one["kind"] == "cancel, status")
    told, page = await shown(given, partial(reply, slips=RULES))
    assert not told["right"] and page.count("wanted:") == 1 and "not as the policy wants it" in page


def test_the_view_is_offered_for_this_examples_tasks_alone() -> None:
    assert served_customer(Rollout(rollout_id="r", input=task(0)))
    assert not served_customer(Rollout(rollout_id="r", input={"question": "?", "orders": []}))


# --------------------------------------------------------------------------------------- runs and their files
def test_the_page_says_what_was_measured() -> None:
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    kept = json.loads(
        (EXAMPLE.parents[1] / "bench" / "results" / "desk_seeds.json").read_text(encoding="utf-8")
    )
    runs = kept["result"]["runs"]
    assert runs and all(one["baseline"] < one["ci_after"][0] for one in runs)
    for one in runs:
        (low, high), (least, most) = one["ci_before"], one["ci_after"]
        row = f"| {one['seed']} | {one['before']:.3f} ({low:.2f}–{high:.2f}) | "
        row += f"**{one['after']:.3f}** ({least:.2f}–{most:.2f}) | {one['baseline']:.3f} | "
        assert row + f"{one['calls_exact']:,} of {one['calls']:,} |" in page


@pytest.mark.parametrize(("name", "policy"), [("cpu", "policy"), ("smollm2", "smollm2")])
def test_a_profile_describes_a_run_that_can_begin(name: str, policy: str) -> None:
    config = read(EXAMPLE / f"{name}.yaml", [])
    assert Path(config.backend.policy or "").name == policy
    found, agent, train, val = configure(
        read(EXAMPLE / f"{name}.yaml", [f"backend.policy={EXAMPLE / 'policy'}"])
    )
    assert agent.function is serve.function and found.recipe.group_size == 8
    assert not {one["id"] for one in train} & {one["id"] for one in val}
    assert len(train) % ROUND == len(val) % ROUND == 0
    assert name == "smollm2" or len(val) == COUNT


@pytest.mark.slow
@pytest.mark.plugins
def test_the_demo_prints_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [
        "environment.val.args.count=18", "environment.headroom_tasks=18", f"output={tmp_path}",
        "trackers=[files]", "training.batch_size=2", "backend.options.engine=thread",
        "backend.options.threads=1",
    ]  # fmt: skip
    status = demo.main(["--steps", "1", *(word for one in sets for word in ("--set", one))])
    line = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [*line] == [
        "before", "after", "ci_before", "ci_after", "baseline", "ahead_of_baseline", "ci_ahead", "calls",
        "calls_exact", "seconds",
    ]  # fmt: skip
    low, high = line["ci_ahead"]
    assert line["ahead_of_baseline"] == pytest.approx(line["after"] - line["baseline"], abs=1e-3)
    assert low < line["ahead_of_baseline"] < high
    assert status == 0 and line["calls"] == line["calls_exact"] > 100
    assert line["baseline"] == pytest.approx(5 / 6, abs=1e-4)


def test_the_lead_over_a_script_is_task_by_task_and_over_clusters() -> None:
    tasks = [{"shop": "ab"[place // 20]} for place in range(40)]
    script = [float(place % 2) for place in range(40)]
    earned = [one if place > 30 else 1.0 for place, one in enumerate(script)]
    lead, (low, high) = difference([None, *earned[1:]], script, tasks, None)
    assert lead == pytest.approx(15 / 39, abs=1e-4) and low < lead < high < 1
    assert difference(script, script, tasks, None)[0] == 0
    assert difference(earned, script, tasks, "shop")[1] != difference(earned, script, tasks, None)[1]
    assert difference([], script, tasks, None) == (None, None)
