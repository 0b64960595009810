"""Rows for verl: what credit means is what the carrier sums to, and what verl would ignore is refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, strategies as st

import agentlightning as agl
from agentlightning.credit.rows import minibatches
from agentlightning.types import Grammar, Row, Segment
from agentlightning.types.arrays import to_bytes
from agl_verl.rows import CannotTrain, Step, pack, pieces, step, train_row as for_recipe, unpack

GRPO = agl.GRPO()


def train_row(row: Row, recipe: agl.Recipe = GRPO):
    return for_recipe(row, recipe)


def row(mask: list[int], **given: object) -> Row:
    n = len(mask)
    values = {
        "row_id": "ro-1/0",
        "rollout_id": "ro-1",
        "policy": "policy",
        "token_ids": list(range(10, 10 + n)),
        "mask": mask,
        "advantages": [0.5 * m for m in mask],
        "logprobs": [-1.0 * m for m in mask],
        "weights": [0.25 * m for m in mask],
        "versions": [3 if m else -1 for m in mask],
    }
    return Row(**{**values, **given})  # type: ignore[arg-type]


def test_the_prompt_ends_where_training_begins() -> None:
    found = train_row(row([0, 0, 1, 1, 0, 1]))
    assert (found.prompt, found.response) == ([10, 11], [12, 13, 14, 15])
    columns = found.columns()
    assert columns.mask.tolist() == [1, 1, 0, 1]
    assert columns.logprobs.tolist() == [-1.0, -1.0, 0.0, -1.0]
    assert columns.carrier.tolist() == [0.125, 0.125, 0.0, 0.125]
    assert found.runs == [2, 1, 1]
    assert (found.oldest, found.newest) == (3, 3)


def test_a_token_that_is_not_known_to_be_of_the_version_that_is_trained_is_stale() -> None:
    merged = row([0, 1, 0, 1, 1], versions=[-1, 2, -1, 3, -1])
    assert for_recipe(merged, GRPO, version=3).columns().stale.tolist() == [1, 0, 0, 1]
    (made,) = unpack(pack(step([merged], GRPO, version=2))).rows
    assert (made.columns().stale.tolist(), made.oldest, made.newest) == ([0, 0, 1, 1], 2, 3)
    assert made.stale_tokens == 2


@given(
    st.lists(st.tuples(st.booleans(), st.floats(-5, 5), st.floats(0, 1)), min_size=1, max_size=30).filter(
        lambda tokens: any(trained for trained, _, _ in tokens)
    )
)
def test_the_carrier_sums_to_what_credit_means(tokens: list[tuple[bool, float, float]]) -> None:
    tokens = [(False, 0.0, 0.0), *tokens]  # nothing predicts the first one
    mask = [int(trained) for trained, _, _ in tokens]
    advantages = [a if m else 0.0 for m, (_, a, _) in zip(mask, tokens, strict=True)]
    weights = [w if m else 0.0 for m, (_, _, w) in zip(mask, tokens, strict=True)]
    found = train_row(row(mask, advantages=advantages, weights=weights))
    columns = found.columns()
    assert sum(columns.carrier) == pytest.approx(sum(a * w for a, w in zip(advantages, weights, strict=True)))
    assert found.prompt + found.response == row(mask).token_ids
    assert sum(columns.mask) == sum(mask) == found.trained_tokens
    assert all(m or not c for m, c in zip(columns.mask, columns.carrier, strict=True))


def test_versions_span_the_trained_tokens() -> None:
    found = train_row(row([0, 1, 1, 1], versions=[-1, 4, 2, 7]))
    assert (found.oldest, found.newest) == (2, 7)


def segment(start: int, end: int, **given: object) -> Segment:
    return Segment(call_id=f"c{start}", start=start, end=end, advantage=0.5, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        {"allowed": {3: [[13, 14]]}},
        {"grammars": {3: Grammar("llguidance", "1.9.1", "start: /a/")}},
        {"segments": [segment(1, 2), segment(3, 5, off_policy=True)]},
    ],
)
def test_tokens_that_were_sampled_otherwise_are_marked(given: dict[str, object]) -> None:
    two = {"segments": [segment(1, 2), segment(3, 5)], **given}
    made = step([row([0, 1, 0, 1, 1], **two)], GRPO)
    assert [one.columns().off_policy.tolist() for one in made.rows] == [[0, 0, 1, 1]]
    assert made.off_policy and made.off_policy_cap == 2.0
    assert not step([row([0, 1, 0, 1, 1])], GRPO).off_policy


def test_all_tokens_of_another_temperature_are_marked() -> None:
    assert train_row(row([0, 1, 0, 1], temperature=0.5)).columns().off_policy.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"allowed": {1: [[11], [12]]}}, "guided choice"),
        ({"grammars": {1: Grammar("llguidance", "1.9.1", "start: /a/")}}, "under a grammar"),
        ({"temperature": 0.5}, r"at temperature 0\.5"),
    ],
)
def test_without_a_cap_they_are_refused(given: dict[str, object], what: str) -> None:
    with pytest.raises(CannotTrain, match=f"{what}.*recipe.off_policy_cap is null"):
        train_row(row([0, 1], segments=[segment(1, 2)], **given), agl.GRPO(off_policy_cap=None))


def test_a_mask_where_no_call_begins_is_refused() -> None:
    with pytest.raises(CannotTrain, match="masked at 1, where no segment starts"):
        train_row(row([0, 1], allowed={1: [[11], [12]]}))


def test_a_row_without_a_trained_token_is_left_out_of_a_step_and_no_row_by_itself() -> None:
    assert step([row([0, 0]), row([0, 1])], GRPO) == Step(
        [train_row(row([0, 1]))], off_policy_cap=2.0, correction=GRPO.correction
    )
    with pytest.raises(CannotTrain, match="no trained token"):
        train_row(row([0, 0]))


def test_a_step_travels_as_bytes() -> None:
    made = step([row([0, 1, 1]), row([0, 1])], GRPO)
    assert unpack(pack(made)) == made


def test_a_step_is_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agl_verl.rows.PIECE", 1000)
    made = step([row([0] + [1] * 99, token_ids=list(range(100))) for _ in range(20)], GRPO, ranks=4)
    found = list(pieces(made))
    one = len(msgspec.msgpack.encode(made.rows[0], enc_hook=to_bytes))
    assert len(found) > 5 and max(map(len, found)) < 1000 + one
    assert unpack(b"".join(found)) == made and unpack(pack(Step([]))) == Step([])


def test_what_travels_does_not_grow_with_what_tokens_have_in_common() -> None:
    mask = [0] + [0] * 900 + [1] * 100
    one = [row(mask, token_ids=list(range(1001)))]
    two = [row(mask * 2, token_ids=list(range(2002)))]
    sizes = [len(pack(step(rows, GRPO))) for rows in (one, two)]
    assert sizes[1] - sizes[0] == pytest.approx(
        1001 * 4 + 100 * 4, rel=0.05
    )  # ids, and logprobs where trained


def test_the_first_token_is_refused() -> None:
    with pytest.raises(CannotTrain, match="first token"):
        train_row(row([1, 1]))


def many(count: int, **given: object) -> list[Row]:
    """Rows of different lengths, each a rollout."""
    return [
        row([0] + [1] * (1 + n % 4), row_id=f"ro-{n}/0", rollout_id=f"ro-{n}", **given) for n in range(count)
    ]


def trained_together(made: Step, ranks: int) -> list[list[list[int]]]:
    """The token ids that each of verl's mini-batches holds: every rank takes its part of its rows in turn."""
    each, own = made.share // ranks, len(made.rows) // ranks
    parts = [made.rows[rank * own : (rank + 1) * own] for rank in range(ranks)]
    return [
        sorted([*r.prompt, *r.response] for part in parts for r in part[at : at + each] if r.trained_tokens)
        for at in range(0, own, each)
    ]


@pytest.mark.parametrize(("rows", "count", "ranks", "share", "steps"), [
    (0, 1, 1, 1, 0), (8, 1, 1, 8, 1), (8, 1, 2, 8, 1), (7, 1, 2, 8, 1), (0, 3, 2, 2, 0),
    (8, 4, 1, 2, 4), (9, 4, 1, 3, 4), (5, 4, 1, 2, 4), (3, 8, 1, 1, 3), (5, 2, 2, 4, 2), (9, 4, 2, 4, 4),
])  # fmt: skip
def test_minibatches_are_those_of_every_driver(
    rows: int, count: int, ranks: int, share: int, steps: int
) -> None:
    given = many(rows)
    made = step(given, agl.GRPO(minibatches=count, epochs=3), ranks, version=3, seed=5)
    assert (made.share, made.optimizer_steps, made.empty_steps) == (share, 3 * steps, 0)
    assert len(made.rows) == share * max(1, steps)
    wanted = [sorted(list(r.token_ids) for r in part) for part in minibatches(given, count, 5, 3)]
    assert trained_together(made, ranks) == (wanted or [[]])
    for one in made.rows:  # each optimizer step sees one part in `steps` of the weights
        assert sum(one.columns().weights) == pytest.approx(0.25 * steps * one.trained_tokens)


def test_minibatches_without_a_gradient_make_no_step() -> None:
    flat = {"advantages": [0.0] * 2}
    rows = [row([0, 1], row_id=f"{n}", **(flat if n < 2 else {})) for n in range(4)]
    shares = minibatches(rows, 4, 0, 0)
    assert [any(map(any, (r.advantages for r in part))) for part in shares].count(True) == 2
    made = step(rows, agl.GRPO(minibatches=4, epochs=2))
    assert (made.optimizer_steps, made.empty_steps) == (4, 4)
    assert step(rows, agl.GRPO(minibatches=4, kl=0.1)).empty_steps == 0


def test_ranks_have_about_as_many_tokens_of_each_minibatch() -> None:
    rows = [row([0] + [1] * (10 * n + 1), row_id=f"{n:02}") for n in range(16)]
    made = step(rows, agl.GRPO(minibatches=2), ranks=2)
    each, own = made.share // 2, len(made.rows) // 2
    for at in range(0, own, each):
        sizes = [
            sum(len(r.response) for r in made.rows[begin + at : begin + at + each]) for begin in (0, own)
        ]
        assert abs(sizes[0] - sizes[1]) < 0.2 * sum(sizes)


@pytest.mark.parametrize(("given", "steps"), [({}, 0), ({"kl": 0.1}, 1), ({"entropy": 0.1}, 1)])
def test_without_a_gradient_there_is_no_optimizer_step(given: dict[str, float], steps: int) -> None:
    flat = row([0, 1, 1], advantages=[0.0, 0.0, 0.0])
    assert step([flat], agl.GRPO(**given)).optimizer_steps == steps
    assert step([flat, row([0, 1])], agl.GRPO(**given)).optimizer_steps == 1


def test_tokens_know_their_calls() -> None:
    segments = [
        Segment(call_id="a", start=1, end=2, advantage=1.0),
        Segment(call_id="b", start=3, end=5, advantage=1.0),
        Segment(call_id="c", start=5, end=6, advantage=1.0, trained=False),
    ]
    found = train_row(row([0, 1, 0, 1, 1, 0], segments=segments))
    assert found.columns().segments.tolist() == [0, -1, 1, 1, -1]
    with pytest.raises(CannotTrain, match="no trained call"):
        train_row(row([0, 1, 0, 1, 1, 1], segments=segments), agl.GRPO(ratio_level="sequence"))
