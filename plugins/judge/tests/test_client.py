"""The client: what a judge may answer, what is asked again, and what is never sent twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agl_testing import Reply, ScriptedModelServer

import agentlightning as agl
from agentlightning.store import SQLiteStore
from agl_judge.check import check, figures, read_pairs
from agl_judge.client import JUDGE, BadVerdict, JudgeClient
from agl_judge.graders.relative import Agree, Rank, Tournament, pairs_of, ranks, read_better, read_scores
from agl_judge.graders.rubric import Criterion, Rubric
from agl_judge.graders.showing import show
from agl_judge.grading import grade_group
from agl_judge.group import Finished, Group, checked
from agl_judge.own_gateway import open_client, read_judge
from plugins.judge.tests.conftest import KEY, candidates, plugins

QUESTION = [{"role": "user", "content": "which?"}]


def rollout(number: int, answer: str, question: str = "2 + 3?") -> Finished:
    thread = ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    return Finished(f"ro-{number}", answer, (thread,), None, {}, {}, None)  # type: ignore[arg-type]


def group_of(*answers: str, client: JudgeClient | None = None) -> Group:
    return Group({"gold": "5"}, "g", tuple(rollout(n, one) for n, one in enumerate(answers)), client=client)


class Asking:
    """A client with a judge whose answers are scripted, and what it counted."""

    def __init__(
        self, client: JudgeClient, server: ScriptedModelServer, store: Any, counts: Counter[str]
    ) -> None:
        self.client, self.server, self.store, self.counts = client, server, store, counts


@pytest.fixture
async def asking() -> AsyncIterator[Asking]:
    store, counts = SQLiteStore(":memory:"), Counter[str]()

    def count(what: str, n: float) -> None:
        counts[what] += int(n)

    async with ScriptedModelServer(lambda body: '{"scores": [1, 0]}', model="j", ids="never") as server:
        judge = agl.LLM(endpoint=server.url, model="j", api_key=KEY)
        async with open_client(store, {"judge": judge}, "r", plugins(), count=count, wait=0.0) as client:
            yield Asking(client, server, store, counts)
    await store.close()


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "The first is better: 0.9",
        '{"scores": [0.5]}',
        '{"scores": [0.1, 0.2, 0.3]}',
        '{"scores": "good"}',
        '{"scores": [NaN, 0]}',
        '{"scores": [Infinity, 0]}',
        '{"scores": ["95", 1]}',
        '{"scores": [true, false]}',
        '{"scores": [95, 1]}',
        '{"scores": [-0.1, 1]}',
        '{"scores": [null, 1]}',
        '{"score": [0, 1]}',
        "[0, 1]",
        '{"scores": [1e999, 0]}',
        'Here: {"scores": [0, 1]}',
    ],
)
async def test_an_answer_that_cannot_be_used_is_asked_again_and_then_missing(
    asking: Asking, bad: str
) -> None:
    asking.server.reply = lambda body: bad
    first, second = await grade_group(
        Rank("judge"), group_of("5", "6", client=asking.client), {"ro-0": "at-0", "ro-1": "at-1"}
    )
    assert first.value is second.value is None and first.reason.startswith("no-verdict")
    assert len(asking.server.log) == 3
    assert (asking.counts["asked_again"], asking.counts["given_up"], asking.counts["judge_calls"]) == (
        2,
        1,
        3,
    )
    again = asking.server.log[-1].body["messages"]
    assert [one["role"] for one in again[2:]] == ["assistant", "user"] * 2
    assert "That cannot be used" in again[-1]["content"]
    (question,) = await asking.store.query_rollouts(run_id="r")
    assert question.status == "failed" and question.reason.startswith("bad-verdict")
    await asking.client.ask("judge", asking.server.log[0].body["messages"], lambda text: text)
    assert len(asking.server.log) == 3  # what cannot be answered is on record too


async def test_a_judge_that_mends_its_answer_is_heard_and_one_that_stumbles_is_tried_again(
    asking: Asking,
) -> None:
    said: list[Any] = [
        Reply(status=503, message="busy"),
        "I like the first.",
        '```json\n{"scores": [1, 0]}\n```',
    ]
    asking.server.reply = lambda body: said[len(asking.server.log) - 1]
    found = await asking.client.ask("judge", QUESTION, lambda text: read_scores(text, 2))
    assert found.value == [1.0, 0.0]
    calls = await asking.store.query_calls(found.rollout_id)
    assert [call.status for call in calls] == ["error", "ok", "ok"]
    assert {call.tags["agent"] for call in calls} == {JUDGE} and not any(call.selected for call in calls)


async def test_the_same_question_is_sent_once_however_many_ask_it(asking: Asking) -> None:
    asked = [asking.client.ask("judge", QUESTION, lambda text: read_scores(text, 2)) for _ in range(20)]
    found = await asyncio.gather(*asked)
    assert len(asking.server.log) == 1 and {one.rollout_id for one in found} == {found[0].rollout_id}
    assert asking.counts["cached"] == 19
    await asking.client.ask("judge", QUESTION, lambda text: text, repeat=1)
    await asking.client.ask("judge", QUESTION, lambda text: text, temperature=0.5)
    assert len(asking.server.log) == 3  # other questions


async def test_an_endpoint_that_does_not_answer_is_no_verdict_and_is_asked_anew_later(asking: Asking) -> None:
    asking.server.reply = lambda body: Reply(status=500, message="broken")
    dead = await asking.client.ask("judge", QUESTION, lambda text: text)
    assert dead.value is None and dead.reason.startswith("no-answer: HTTP 5") and len(asking.server.log) == 4
    asking.server.reply = lambda body: "well"
    assert (await asking.client.ask("judge", QUESTION, lambda text: text)).value == "well"


async def test_a_question_that_is_refused_is_not_tried_again(asking: Asking) -> None:
    asking.server.reply = lambda body: Reply(status=400, message="too long")
    assert (await asking.client.ask("judge", QUESTION, lambda text: text)).value is None
    assert len(asking.server.log) == 1


async def test_without_a_gateway_answers_come_from_the_store_alone(asking: Asking) -> None:
    await asking.client.ask("judge", QUESTION, lambda text: text)
    async with JudgeClient(asking.store, None, "r") as stored:
        assert (await stored.ask("judge", QUESTION, lambda text: text)).value == '{"scores": [1, 0]}'
        with pytest.raises(agl.UsageError, match="nobody is there to ask"):
            await stored.ask("judge", [{"role": "user", "content": "new"}], lambda text: text)


# ------------------------------------------------------------------------------------------------ the graders
def test_what_all_begin_with_is_said_once_and_equal_rollouts_are_one_candidate() -> None:
    shown = show(group_of("5", "6", "5"))
    assert shown.prefix == "user: 2 + 3?" and len(shown.texts) == 2
    assert shown.of[0] == shown.of[2] != shown.of[1]
    again = show(group_of("6", "5", "6"))
    assert again.texts == shown.texts  # the order does not follow the samples


async def test_rank_gives_each_rollout_the_score_of_what_it_said(asking: Asking) -> None:
    def score(body: dict[str, Any]) -> str:
        return json.dumps({"scores": [float("5" in one) for one in candidates(body)]})

    asking.server.reply = score
    group = group_of("5", "6", "5", "seven", client=asking.client)
    assert await Rank("judge")(group) == [1.0, 0.0, 1.0, 0.0]
    assert await Rank("judge", values="ranks")(group) == [5 / 6, 1 / 6, 5 / 6, 1 / 6]
    assert len(asking.server.log) == 1
    question = asking.server.log[0].body["messages"][1]["content"]
    assert question.count("2 + 3?") == 1 and '"gold"' not in question
    await Rank("judge", show=["gold"])(group)
    assert '{"gold": "5"}' in asking.server.log[1].body["messages"][1]["content"]


async def test_a_group_of_one_and_a_group_of_equals_ask_nobody(asking: Asking) -> None:
    one = group_of("5", client=asking.client)
    assert await Rank("judge")(one) == [None] and one.reasons == {"ro-0": "group-of-one"}
    assert await Tournament("judge")(group_of("5", client=asking.client)) == [None]
    assert await Agree()(group_of("5")) == [None]
    assert await Rank("judge")(group_of("5", "5", client=asking.client)) == [0.5, 0.5]
    assert not asking.server.log


async def test_a_tournament_gives_points_and_a_bias_for_a_place_is_worth_nothing(asking: Asking) -> None:
    group = group_of("5", "6", "seven", client=asking.client)
    asking.server.reply = lambda body: json.dumps({"better": 1})
    assert await Tournament("judge")(group) == [0.5, 0.5, 0.5] and len(asking.server.log) == 6

    def right(body: dict[str, Any]) -> str:
        first, second = ("5" in one for one in candidates(body))
        return json.dumps({"better": 0 if first == second else 1 if first else 2})

    asking.server.reply = right
    assert await Tournament("judge", about="It is five.")(group) == [1.0, 0.25, 0.25]


def test_pairs_and_ranks() -> None:
    assert pairs_of(3, None) == [(0, 1), (0, 2), (1, 2)]
    assert pairs_of(6, 2) == [(0, 1), (0, 5), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert ranks([0.3, 0.9, 0.3]) == [0.25, 1.0, 0.25]


async def test_agreement_needs_no_judge_and_no_majority_is_no_reward() -> None:
    assert await Agree()(group_of("5", " 5 ", "6")) == [1.0, 1.0, 0.0]
    assert await Agree(values="share")(group_of("5", "5", "6", "")) == [1 / 3, 1 / 3, 0.0, 0.0]
    split = group_of("5", "6")
    assert await Agree()(split) == [None, None] and set(split.reasons.values()) == {"no-majority"}
    assert await Agree(read=lambda text: text[-1:])(group_of("is 5", "5", "6")) == [1.0, 1.0, 0.0]


async def test_a_rubric_weighs_code_and_judge_and_a_criterion_nobody_could_tell_is_missing(
    asking: Asking,
) -> None:
    asking.server.reply = lambda body: json.dumps({"scores": {"polite": 0.5}})
    rubric = Rubric(
        Criterion("polite", ask="It is polite."),
        Criterion("right", check=lambda task, one: one.answer == task["gold"], weight=3.0),
        judge="judge",
    )
    group = group_of("5", "6", client=asking.client)
    assert await rubric(group) == [0.875, 0.125] and group.parts["ro-0"] == {"polite": 0.5, "right": 1.0}
    asking.server.reply = lambda body: json.dumps({"scores": {"polite": 0.5, "kind": 1}})
    unheard = group_of("7", client=asking.client)
    assert await rubric(unheard) == [None] and not unheard.parts
    nobody = Rubric(Criterion("told", check=lambda task, one: None))
    assert await nobody(group_of("5")) == [None]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rubric(),
        lambda: Rubric(Criterion("x", ask="y")),
        lambda: Criterion("x"),
        lambda: Criterion("x", ask="y", weight=0.0),
        lambda: Rank("judge", values="best"),  # type: ignore[arg-type]
        lambda: Agree(values="most"),  # type: ignore[arg-type]
        lambda: Tournament("judge", opponents=0),
    ],
)
def test_settings_that_cannot_be_are_refused(make: Any) -> None:
    with pytest.raises(agl.UsageError):
        make()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([1.0], "1 rewards for 2"),
        ({"ro-0": 1.0}, "no entry for ro-1"),
        ({"ro-0": 1.0, "ro-1": 2.0, "ro-9": 3.0}, "no rollout of the group"),
        ([float("nan"), 1.0], "not a finite number"),
        (["95", 1.0], "not a finite number"),
        ([True, 1.0], "give a number"),
        ("ab", "it is str"),
        (None, "it is NoneType"),
    ],
)
def test_what_a_function_gives_is_used_whole_or_not_at_all(given: Any, why: str) -> None:
    with pytest.raises(BadVerdict, match=why):
        checked(group_of("5", "6"), given)


def test_better_is_one_of_three() -> None:
    assert [read_better(f'{{"better": {n}}}') for n in (0, 1, 2)] == [0.5, 1.0, 0.0]
    for bad in ("3", '"1"', "true", "null", "1.5"):
        with pytest.raises(BadVerdict):
            read_better(f'{{"better": {bad}}}')


# ------------------------------------------------------------------------------------------- agl judge check
async def test_a_judge_is_measured_on_labelled_pairs(asking: Asking, tmp_path: Any) -> None:
    file = tmp_path / "pairs.jsonl"
    lines = [
        {"prompt": "2 + 3?", "a": "5", "b": "6", "better": "a"},
        {"prompt": "x", "a": "no", "b": "5", "better": "b"},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))

    def right(body: dict[str, Any]) -> str:
        return json.dumps({"better": 1 if "5" in candidates(body)[0] else 2})

    asking.server.reply = right
    found = await check(asking.client, "judge", read_pairs(file), asking.counts, repeats=2)
    assert (
        found["agreement"] == 1.0
        and found["position_bias"] == found["contradicted"] == found["varied"] == 0.0
    )
    assert found["calls"] == len(asking.server.log) == 8 and found["tokens"] > 0
    asking.server.reply = lambda body: json.dumps({"better": 1})
    biased = await check(asking.client, "judge", read_pairs(file), asking.counts, repeats=1)
    assert biased["agreement"] == 0.5 and biased["position_bias"] == 0.5 and biased["contradicted"] == 1.0
    file.write_text('{"prompt": "x", "a": "y", "b": "z", "better": "c"}')
    with pytest.raises(agl.UsageError, match="line 1"):
        read_pairs(file)


def test_an_unusable_answer_is_neither_right_nor_wrong() -> None:
    pairs = read_pairs_of(3)
    said = [[(1.0, 0.0)], [(None, 0.0)], [(None, None)]]
    found = figures(pairs, said, {})
    assert (found["answers"], found["unusable"], found["agreement"]) == (3, 3, 1.0)


def read_pairs_of(n: int) -> list[Any]:
    from agl_judge.check import Pair

    return [Pair("q", ("a", "b"), 1) for _ in range(n)]


def test_a_judge_is_named_by_model_and_address_or_folder() -> None:
    endpoint = read_judge("gpt@https://models.example/v1", "k")
    assert isinstance(endpoint, agl.LLM) and endpoint.model == "gpt" and endpoint.api_key == "k"
    folder = read_judge("smollm2", None)
    assert isinstance(folder, agl.PolicyFolder) and not folder.train
    with pytest.raises(agl.UsageError):
        read_judge("@https://models.example/v1", None)
