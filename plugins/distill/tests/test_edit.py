"""The edit of a batch: what it adds, what it takes out, and that the accounts still sum."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest

from agentlightning.credit.accounts import row_metrics
from agentlightning.credit.rows import set_weights
from agentlightning.types import Batch, Ledger, Recipe, Row, Segment
from agl_distill.edit import edited, pack, unpack
from agl_distill.recipe import distill

RECIPE = distill()


def row(
    name: str, rollout: str, calls: dict[str, int], advantage: float = 0.0, policy: str = "policy"
) -> Row:
    """A row of a prompt token and a response of each call, with one token of the user between them."""
    mask, segments = [0], []
    for call, n in calls.items():
        segments.append(Segment(call, len(mask), len(mask) + n, advantage))
        mask += [1] * n + [0]
    made = Row(
        row_id=name,
        rollout_id=rollout,
        policy=policy,
        token_ids=list(range(3, 3 + len(mask))),
        mask=mask,
        advantages=[advantage * on for on in mask],
        logprobs=[-0.5 * on for on in mask],
        weights=[0.0] * len(mask),
        versions=[0 if on else -1 for on in mask],
        segments=segments,
    )
    return made


def batch(*rows: Row, recipe: Recipe = RECIPE) -> Batch:
    set_weights(rows, recipe)
    ledgers = []
    for rollout in dict.fromkeys(one.rollout_id for one in rows):
        mine = [one for one in rows if one.rollout_id == rollout]
        trained = sum(len(one.segments) for one in mine)
        left = {"stale": 1}
        ledgers.append(
            Ledger(rollout, made=trained + 1, trained=trained, merged=trained - len(mine), left_out=left)
        )
    metrics = {"reward_count": 0, "left_out/stale": len(ledgers), "calls_trained": 99.0, "merged": 99.0}
    return Batch(rows=list(rows), ledgers=ledgers, metrics={**metrics, **row_metrics(rows, recipe)})


def body(
    scores: dict[str, list[float]], out: dict[str, str] | None = None, **settings: Any
) -> dict[str, Any]:
    return {
        "settings": {"coefficient": 1.0, "divergence": "reverse", "beta": 0.5, **settings},
        "scores": {call: pack(values) for call, values in scores.items()},
        "left_out": out or {},
        "hints": {},
    }


def test_scores_are_float32_and_come_back_as_they_are() -> None:
    assert unpack(pack([-0.5, -1.25, 0.0])) == [-0.5, -1.25, 0.0]
    assert unpack(pack([-0.1])) == pytest.approx([-0.1], abs=1e-8) and unpack(pack([])) == []


def test_the_teachers_advantage_is_added_to_that_of_the_reward_token_by_token() -> None:
    given = batch(row("r/0", "r", {"a": 2, "b": 1}, advantage=0.25))
    before = deepcopy(given)
    found = edited(given, RECIPE, body({"a": [-0.5, -1.5], "b": [-0.25]}, coefficient=2.0))
    (made,) = found.rows
    assert made.advantages == [0.0, 0.25, 0.25 - 2.0, 0.0, 0.25 + 0.5, 0.0]
    assert [(s.call_id, s.advantage, s.trained) for s in made.segments] == [
        ("a", 0.25 - 1.0, True), ("b", 0.75, True),
    ]  # fmt: skip
    assert made.metadata["tokens"]["teacher"] == [0.0, -0.5, -1.5, 0.0, -0.25, 0.0]
    assert (made.mask, made.weights, made.logprobs) == (
        given.rows[0].mask, given.rows[0].weights, given.rows[0].logprobs,
    )  # fmt: skip
    assert found.metrics["distill/reverse_kl"] == pytest.approx((0.0 + 1.0 - 0.25) / 3)
    assert found.ledgers == given.ledgers and given == before


def test_a_call_without_a_score_is_in_no_row_and_in_one_account() -> None:
    two, one = row("r/0", "r", {"a": 2, "b": 3}), row("r/1", "r", {"c": 4})
    other = row("s/0", "s", {"d": 2})
    found = edited(
        batch(two, one, other),
        RECIPE,
        body({"b": [-0.5] * 3, "d": [-1.0] * 2}, {"a": "distill-failed", "c": "distill-not-finite"}),
    )
    assert [made.row_id for made in found.rows] == ["r/0", "s/0"]
    made = found.rows[0]
    assert made.mask == [0, 0, 0, 0, 1, 1, 1, 0] and made.versions == [-1, -1, -1, -1, 0, 0, 0, -1]
    assert made.logprobs == [0.0] * 4 + [-0.5] * 3 + [0.0]
    assert [(s.call_id, s.trained) for s in made.segments] == [("a", False), ("b", True)]
    # weights are those of a batch that these calls were never in
    assert math.fsum(w for made in found.rows for w in made.weights) == pytest.approx(1.0)
    assert made.weights[4] == pytest.approx(1 / 5)
    ledger = found.ledgers[0]
    assert ledger.sums and (ledger.made, ledger.trained, ledger.merged) == (4, 1, 0)
    assert ledger.left_out == {"stale": 1, "distill-failed": 1, "distill-not-finite": 1}
    assert found.metrics["calls_trained"] == 2 and found.metrics["tokens_trained"] == 2
    assert found.metrics["left_out/distill-failed"] == found.metrics["left_out/distill-not-finite"] == 1
    assert found.metrics["left_out/stale"] == 2 and found.metrics["rows"] == 2


def test_a_step_of_which_no_call_was_scored_trains_nothing() -> None:
    found = edited(batch(row("r/0", "r", {"a": 2})), RECIPE, body({}, {"a": "distill-failed"}))
    assert found.rows == [] and found.metrics["calls_trained"] == 0 and found.ledgers[0].sums
    assert "distill/reverse_kl" not in found.metrics


def test_each_named_policy_is_counted_by_itself() -> None:
    given = batch(row("r/0", "r", {"a": 2}, policy="one"), row("r/1", "r", {"b": 2}, policy="two"))
    given.policies = {
        name: {"calls": 1, "calls_trained": 1, **row_metrics(given.rows[i : i + 1], RECIPE)}
        for i, name in enumerate(("one", "two"))
    }
    found = edited(given, RECIPE, body({"a": [-0.5, -0.75]}, {"b": "distill-failed"}))
    assert (found.policies["one"]["calls_trained"], found.policies["two"]["calls_trained"]) == (1, 0)
    assert found.policies["two"]["left_out/distill-failed"] == 1 and found.policies["two"]["rows"] == 0
    assert "left_out/distill-failed" not in found.policies["one"] and found.policies["one"]["calls"] == 1


def test_a_call_of_which_the_link_says_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="says nothing of call 'a'"):
        edited(batch(row("r/0", "r", {"a": 2})), RECIPE, body({}))
    with pytest.raises(ValueError, match=r"zip\(\)"):
        edited(batch(row("r/0", "r", {"a": 2})), RECIPE, body({"a": [-0.5]}))
