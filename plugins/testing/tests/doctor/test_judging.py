"""What the checks say about rollouts, from records made by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from agl_testing.doctor.checks.capture import judge_capture
from agl_testing.doctor.checks.prefix import judge_prefix, prefix_sharing
from agl_testing.doctor.checks.reward import RewardJudgement, judge_reward, judge_unrewarded
from agl_testing.doctor.report import Check
from core.credit.builders import make_call, make_record, make_wire, one_call

from agentlightning.credit import assign
from agentlightning.recipes import GRPO
from agentlightning.types import Call, Recipe, Record, Reward, RolloutStatus, Span
from agentlightning.types.failure import read_failure_table


def exact(rollout_id: str = "r0", **fields: Any) -> Record:
    call = one_call(rollout_id, response_id=f"resp-{rollout_id}", tags=fields.pop("tags", {"agent": "calc"}))
    return make_record(rollout_id, [call], wire=[make_wire(call)], **{"reward": 1.0, **fields})


# ---------------------------------------------------------------------------------------------- capture
def test_exact_calls_with_rewards_are_well() -> None:
    check = judge_capture([exact("r0"), exact("r1", reward=0.0)])
    assert (check.status, check.title, check.advice) == ("ok", "2 of 2 calls exact, in 2 rollouts", [])
    assert check.data["agents"] == {"calc": 2} and check.data["rewards"] == [1.0, 0.0]


def stray(record: Record) -> Record:
    span = Span(rollout_id="r0", attempt_id="r0-a", name="openai.chat.completion", span_id="elsewhere")
    record.wire.append(span)
    return record


def refusing(record: Record) -> Record:
    span = Span(rollout_id="r0", attempt_id="r0-a", name="openai.chat.completion", span_id="elsewhere")
    span.attributes["agl.refused"] = "unsupported-field"
    record.wire.append(span)
    return record


def erring() -> Call:
    return make_call("e", None, None, status="error", error="HTTP 404 no_search: no such tool", sequence=1)


CASES: list[tuple[list[Record], str, str]] = [
    ([make_record(calls=[], reward=1.0)], "fail", "the agent made no model call"),
    ([stray(make_record(calls=[], reward=1.0))], "fail", "1 call went past the gateway"),
    ([stray(exact())], "warn", "1 call went past the gateway"),
    ([refusing(make_record(calls=[], reward=1.0))], "fail", "1 call refused: 1 × unsupported-field"),
    ([refusing(exact())], "warn", "1 call refused: 1 × unsupported-field"),
    (
        [make_record(calls=[one_call(), erring()], reward=1.0)],
        "warn",
        "1 call refused: 1 × HTTP 404 no_search",
    ),
    ([make_record(reward=1.0)], "warn", "1 call gateway-only: no wire span"),
    (
        [make_record(calls=[make_call("c", None, None)], reward=1.0)],
        "fail",
        "no call can be trained: none has ids that agree",
    ),
    ([make_record(calls=[one_call(prompt_tokens=9)], reward=1.0)], "fail", "no call can be trained"),
    ([exact(reward=None)], "fail", "1 of 1 rollout returned without a reward"),
    ([exact("r0"), exact("r1", reward=None)], "warn", "1 of 2 rollouts returned without a reward"),
    (
        [exact(status=RolloutStatus.FAILED, reason="agent-raised: KeyError: 'x'")],
        "fail",
        "1 of 1 rollout failed: 1 × agent-raised: KeyError: 'x'",
    ),
]


@pytest.mark.parametrize(("records", "status", "title"), CASES)
def test_what_capture_finds_is_said_with_what_to_do(records: list[Record], status: str, title: str) -> None:
    check = judge_capture(records)
    assert check.status == status and check.title.startswith(title) and check.advice


def test_a_reward_of_a_call_is_a_reward() -> None:
    record = exact(reward=None)
    record.rewards = [Reward(value=0.5, call_id=record.calls[0].call_id)]
    assert judge_capture([record]).status == "ok"


def test_select_that_matches_nobody_names_who_called() -> None:
    record = exact()
    record.calls[0].selected = False
    check = judge_capture([record], select="planner")
    assert check.status == "fail" and check.title == "`select` (planner) matches nobody: calls came from calc"
    partly = exact("r1", tags={"agent": "planner"})
    check = judge_capture([record, partly], select="planner")
    assert check.status == "ok" and "trained: 1 × planner; not trained: calc" in check.detail


def test_what_marked_classes_leave_out_is_said() -> None:
    records = [exact(), exact("r1", tags={"node": "check"})]
    records[0].calls[0].selected = False
    assert "trained: 1 × check; not trained: calc" in judge_capture(records).detail
    records[1].calls[0].selected = False
    check = judge_capture(records)
    assert check.status == "fail"
    assert check.title == "no call is chosen for training: calls came from calc, check"
    assert "agent.select to a name of theirs (calc, check)" in judge_capture(records, "x").advice[0]


def test_calls_that_cannot_be_told_apart_are_said() -> None:
    unnamed = exact("r1", tags={"role": "unknown"})
    assert judge_capture([unnamed]).status == "ok", "where all are unnamed there is nobody to tell apart"
    check = judge_capture([exact(), unnamed])
    assert check.status == "warn" and "1 call without an agent's name" in check.title
    assert "@agl.agent" in check.advice[0]


# ----------------------------------------------------------------------------------------------- prefix
def turns(*ids: tuple[list[int], list[int]], said: tuple[str, ...] = ()) -> list[Call]:
    """A conversation: each turn's request quotes the ones before it."""
    messages: list[dict[str, Any]] = []
    calls = []
    for sequence, (prompt, answer) in enumerate(ids):
        messages = [*messages, {"role": "user", "content": f"question {sequence}"}]
        reply = {"role": "assistant", "content": said[sequence] if said else f"answer {sequence}"}
        calls.append(
            make_call(
                f"c{sequence}", prompt, answer, sequence, request={"messages": messages}, response=reply
            )
        )
        messages = [*messages, {**reply, "content": reply["content"].rsplit("</think>")[-1]}]
    return calls


def test_history_that_extends_is_well_and_costs_less() -> None:
    found = prefix_sharing([turns(([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 2, 3, 4, 5, 6], [7]))])
    assert (found.calls, found.merged, found.broken) == (3, 2, 0)
    assert (found.tokens_merged, found.tokens_apart) == (7, 3 + 5 + 7)
    check = judge_prefix(found, "the agent's turns")
    assert (check.status, check.title) == (
        "ok",
        "2 of 2 later turns extend their history (the agent's turns)",
    )
    assert check.detail == ["3 calls a rollout; 7 tokens in rows, 15 if none merged"]


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        (turns(([1, 2], [3]), ([9, 2, 3, 4], [5])), "template"),
        (turns(([1, 2], [3, 4]), ([1, 2, 8, 8, 4], [5])), "retokenised"),
        (
            turns(([1, 2], [10, 11, 3]), ([1, 2, 3, 4], [5]), said=("<think>hm</think>ten", "eleven")),
            "think-stripped",
        ),
    ],
)
def test_history_that_does_not_extend_is_named_with_what_it_costs(calls: list[Call], reason: str) -> None:
    found = prefix_sharing([calls])
    assert found.breaks == {reason: 1} and found.tokens_merged == found.tokens_apart
    check = judge_prefix(found, "the agent's turns")
    assert (
        check.status == "warn"
        and check.title == f"history does not extend in 1 of 1 later turn (1 × {reason})"
    )
    assert len(check.advice) == 1 and check.detail[0].endswith(" if all did")


def test_branches_are_meant_and_calls_without_ids_are_left_out() -> None:
    calls = turns(([1], [2]), ([1, 2, 3], [4]))
    calls.append(make_call("b", [1, 2, 5], [6], 2))
    calls.append(make_call("e", None, None, 3, status="error"))
    found = prefix_sharing([calls])
    assert found.breaks == {"branch": 1} and found.broken == 0 and found.calls == 3
    assert judge_prefix(found, "x").status == "ok"
    assert judge_prefix(prefix_sharing([[]]), "x").status == "warn"


# ----------------------------------------------------------------------------------------------- reward
def groups(*rewards: list[float | None], **fields: Any) -> list[Record]:
    """A record for each number, a group for each list; ``None``: no reward."""
    return [
        make_record(f"g{g}s{s}", [one_call(f"g{g}s{s}", **fields)], reward=reward, group=f"g{g}", sample=s)
        for g, group in enumerate(rewards)
        for s, reward in enumerate(group)
    ]


def judged(
    records: list[Record], recipe: Recipe | None = None, oracle: list[Record] | None = None
) -> RewardJudgement:
    recipe = recipe or GRPO(group_size=8)
    return judge_reward(records, assign(records, recipe), recipe, oracle or [])


def test_rewards_with_spread_are_well() -> None:
    check, suggestion = judged(groups(*[[0.0, 1.0] * 4] * 8))
    assert check.status == "ok" and check.title.startswith("mean 0.500 over 64 rollouts of 8 tasks; 100 %")
    assert suggestion is not None and suggestion.why == "enough" and suggestion.size < 8
    assert any("would do" in line for line in check.detail)


POINTLESS: list[tuple[list[Record], Recipe | None, str]] = [
    (groups(*[[0.0] * 8] * 4), None, "all 32 rewards are 0: the policy never succeeds"),
    (groups(*[[1.0] * 8] * 4), None, "all 32 rewards are 1: there is nothing left to learn"),
    (
        groups([None] * 4),
        None,
        "not one of 4 rollouts got a reward: 4 × no-reward: it succeeded, but no finite reward of any "
        "kind was emitted",
    ),
    (groups([0.0, 1.0] * 4, selected=False), None, "no call can be trained (8 × not-selected)"),
    (groups([0.0], [1.0], [1.0]), GRPO(group_size=1), "groups of 1 have no spread"),
]


@pytest.mark.parametrize(("records", "recipe", "title"), POINTLESS)
def test_pointless_training_is_refused_with_the_reason(
    records: list[Record], recipe: Recipe | None, title: str
) -> None:
    check, _ = judged(records, recipe)
    assert check.status == "fail" and check.advice
    assert check.title.startswith(f"training would be pointless: {title}"), check.title


def test_few_equal_rewards_only_warn() -> None:
    assert judged(groups([0.0, 0.0]))[0].status == "warn"


def test_failed_rollouts_are_no_rewards() -> None:
    records = groups(*[[0.0, 1.0] * 4] * 4)
    for record in records[:3]:
        record.rollout.status = RolloutStatus.FAILED
        record.rollout.reason = "timeout: the attempt took longer than 60 s"
    check, _ = judged(records)
    assert check.status == "warn" and check.title.startswith("3 of 32 rollouts failed: 3 × timeout")
    assert sum(map(len, check.data["groups"])) == 29


def test_what_the_failure_table_rewards_is_a_reward() -> None:
    """All who succeed have the same reward, and failures another: there is something to learn."""
    records = groups(*[[1.0] * 4] * 4)
    for record in records[::2]:
        record.rollout.status = RolloutStatus.FAILED
        record.rollout.reason = "timeout: the attempt took longer than 60 s"
    recipe = GRPO(group_size=4)
    for given, status in (({}, "fail"), ({"timeout": -1.0}, "warn"), ({"timeout": 1.0}, "fail")):
        table = read_failure_table(given)
        check, _ = judge_reward(records, assign(records, recipe, failure=table), recipe, (), table)
        assert check.status == status, (given, check)


def test_a_rollout_without_a_call_is_no_spread() -> None:
    records = groups(*[[1.0] * 8] * 4)
    for record in records[::2]:
        record.calls, record.rewards = [], [Reward(value=0.0)]
    for table in (read_failure_table(None), read_failure_table({"no-call": -1.0})):
        recipe = GRPO(group_size=8)
        check, _ = judge_reward(records, assign(records, recipe, failure=table), recipe, (), table)
        assert check.status == "fail" and "all 16 rewards are 1" in check.title, check


@pytest.mark.parametrize(
    "rewards", [[0.25, 0.5, 0.75, 1.0] * 2, [2.0**53, -(2.0**52)] * 4, [2.0**53] * 7 + [1e-308]]
)
def test_graded_and_huge_rewards_are_numbers(rewards: list[float]) -> None:
    check, suggestion = judged(groups(*[rewards] * 4))
    assert check.status != "fail" and suggestion is not None and len(check.title) < 120
    assert math.isfinite(check.data["reward_mean"])


def test_one_task() -> None:
    check, suggestion = judged(groups([0.0, 1.0, 0.0, 1.0]), GRPO(group_size=4))
    assert check.status in ("ok", "warn") and suggestion is not None and suggestion.size >= 2


def test_all_failed_says_why() -> None:
    records = groups(*[[None] * 4] * 2)
    for record in records:
        record.rollout.status = RolloutStatus.FAILED
        record.rollout.reason = "agent-raised: KeyError: 'x'"
    check, _ = judged(records)
    assert check.status == "fail" and "8 × agent-raised: KeyError: 'x'" in check.title


def test_groups_that_are_too_small_get_a_size() -> None:
    check, suggestion = judged(
        groups(*[[0.0, 1.0]] * 8, *[[0.0, 0.0]] * 4, *[[1.0, 1.0]] * 4), GRPO(group_size=2)
    )
    assert suggestion is not None and suggestion.size > 2 and check.status == "warn"
    assert check.title.startswith("groups of 2 carry a signal for ")
    wanted = f"Set training.recipe.group_size to {suggestion.size} ({100 * suggestion.informative:.0f} %)."
    assert check.advice == [wanted]


def test_tasks_out_of_reach_are_said_to_be() -> None:
    check, suggestion = judged(groups(*[[0.0] * 8] * 15, [0.0] * 7 + [1.0]))
    assert suggestion is not None and suggestion.informative < 0.3
    assert check.status == "warn" and "choose tasks nearer to its reach" in check.advice[0]


def test_headroom_against_the_oracle() -> None:
    records = groups(*[[0.0, 1.0] * 4] * 4)
    check, _ = judged(records, oracle=groups([1.0], [1.0]))
    assert "oracle 1.000 on the same tasks: 50 points to gain" in check.detail
    assert "only 0 points to the oracle" in titles(judged(records, oracle=groups([0.0], [1.0]))[0])
    assert "the oracle got no reward" in titles(judged(records, oracle=groups([None]))[0])


def test_without_groups_only_the_spread_of_all_counts() -> None:
    records = groups([0.0], [1.0], [1.0], [0.0])
    check, suggestion = judged(records, GRPO(group_size=1, baseline="batch"))
    assert check.status == "ok" and suggestion is None


def titles(check: Check) -> str:
    return "\n".join([check.title, *check.detail])


def test_a_rule_that_reads_no_reward_needs_calls_to_train_and_nothing_else() -> None:
    def even(record: Record, recipe: Recipe) -> dict[str, float | None]:
        return {call.call_id: 0.0 for call in record.calls}

    even.credits_unrewarded = True  # type: ignore[attr-defined]
    recipe = Recipe(name="even", credit="even", baseline="none", group_size=1)
    records = [make_record("r0", [one_call("r0")]), make_record("r1", [one_call("r1")])]
    check = judge_unrewarded("even", records, assign(records, recipe, rules={"even": even}))
    assert check.status == "ok" and check.data == {"rollouts": 2, "calls_trained": 2}
    assert check.title == "the credit rule 'even' reads no reward; 2 calls can be trained"
    for record in records:
        record.calls[0].selected = False
    check = judge_unrewarded("even", records, assign(records, recipe, rules={"even": even}))
    assert check.status == "fail" and "2 × not-selected" in check.title and check.advice


def test_where_no_reward_is_read_none_is_missed() -> None:
    records = [exact("r0", reward=None)]
    assert judge_capture(records).status == "fail"
    assert judge_capture(records, rewarded=False).status == "ok"
