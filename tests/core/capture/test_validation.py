"""The door: hostile values are refused or set aside with the reason, and never raise anything else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from contract.capturing import Recording

import agentlightning as agl
from agentlightning import semconv
from agentlightning.capture import COUNTS, records
from agentlightning.capture.context import attempt_context
from agentlightning.capture.emit import INPUT, OUTPUT, recorded_operation
from agentlightning.capture.records import (
    DEEPEST,
    BadRecord,
    admit,
    check_span,
    jsonable,
    reward_number,
)
from agentlightning.store import codec
from agentlightning.types import Span

LONGEST, MOST = 5_000, 500


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    COUNTS.clear()
    monkeypatch.setattr(records, "LONGEST_TEXT", LONGEST)
    monkeypatch.setattr(records, "MOST_VALUES", MOST)


class Raises:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not touch")

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__

    def __float__(self) -> float:
        raise ZeroDivisionError("no number")


class Endless(Sequence[int]):
    """A sequence without an end."""

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, index: Any) -> Any:
        return 1

    def __iter__(self) -> Iterator[int]:
        while True:
            yield 1


class BadMapping(Mapping[Any, Any]):
    """A mapping whose entries cannot be read."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: Any) -> Any:
        raise KeyError(key)

    def __iter__(self) -> Iterator[Any]:
        raise OSError("the disk is gone")


def circle() -> list[Any]:
    found: list[Any] = []
    found += [found, found, {"again": found}]
    return found


def deep() -> Any:
    found: Any = 1
    for _ in range(50_000):
        found = [found]
    return found


HOSTILE: dict[str, Any] = {
    "raises": [Raises()],
    "endless": Endless(),
    "a bad mapping": BadMapping(),
    "a circle": circle(),
    "deep": deep(),
    "enormous text": "x" * (LONGEST + 10),
    "enormous int": 10**400,
    "half a character": "\ud800",
    "nul": "a\0b",
    "a generator": (x for x in ()),
    "keys that raise": {Raises: 1, 2: 3},
    "a wide list": list(range(MOST + 10)),
    "nan": math.nan,
    "many keys": {str(i): i for i in range(MOST + 10)},
    "text as key": {"\ud800": 1},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_is_handed_over_has_a_form_that_the_store_takes(name: str) -> None:
    found = jsonable(HOSTILE[name])
    json.dumps(found, allow_nan=False)
    assert json.loads(json.dumps(found)) == found
    packed = codec.pack(found)
    assert codec.unpack(packed) == found and len(packed) < 50_000
    recorder = Recording("c", None)
    with attempt_context(recorder.context):
        agl.emit_object(HOSTILE[name])
        with recorded_operation("op", {INPUT: HOSTILE[name], OUTPUT: HOSTILE[name]}):
            pass
    assert len(recorder.spans) == 2
    for span in recorder.spans:
        check_span(span)
        assert codec.unpack_span(codec.pack_span(span), rollout_id="r", attempt_id="a", name="n")


def test_half_a_character_in_the_place_of_a_number_is_a_bad_record() -> None:
    span = Span(rollout_id="r", attempt_id="a", name="n", attributes={semconv.CHOICE: "\ud800"})
    with pytest.raises(BadRecord, match=r"attribute \S+ is '\\ud800': .*surrogates not allowed"):
        check_span(span)


def test_what_is_cut_is_marked_and_counted() -> None:
    nested = jsonable(deep())
    for _ in range(DEEPEST):
        [nested] = nested
    assert nested == "(nested too deeply)"
    assert jsonable(circle()) == ["(a cycle)", "(a cycle)", {"again": "(a cycle)"}]
    assert jsonable({"x": Endless()})["x"][-1] == "(too many values)"
    assert jsonable("x" * (LONGEST + 1)).endswith(f"… (cut: {LONGEST + 1} characters)")
    assert COUNTS.snapshot() == {"convert-cut": 6}
    assert jsonable([1, "ä", {"same": (one := [2]), "twice": one}]) == [1, "ä", {"same": [2], "twice": [2]}]


@pytest.mark.parametrize(
    "value",
    [
        True,
        3,
        2.5,
        np.float32(0.5),
        np.int64(2),
        np.array(1.0),
        2**53,
        -(2**53),
        Decimal("0.1"),
        Fraction(1),
    ],
)
def test_a_reward_is_a_number(value: Any) -> None:
    assert reward_number(value, "r") == float(value) and type(reward_number(value, "r")) is float


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        Decimal("NaN"),
        1e308,
        2**53 + 2,
        10**400,
        "1",
        None,
        [1.0],
        Raises,
        1j,
        np.array([1.0, 2.0]),
    ],
)
def test_what_is_no_reward_is_refused_whatever_it_does(value: Any) -> None:
    value = Raises() if value is Raises else value
    with pytest.raises(BadRecord, match=r"r (is|of type)") as refused:
        reward_number(value, "r")
    assert refused.value.kind == "bad-reward"
    recorder = Recording("c", None)
    with attempt_context(recorder.context), pytest.raises(ValueError, match="reward"):
        agl.emit_reward(value)
    assert recorder.spans == []


ODD_REWARDS: list[tuple[dict[str, Any], str]] = [
    ({"agent": ["a", "b"]}, "agl.reward.agent"),
    ({"agent": ""}, "agl.reward.agent"),
    ({"agent": 7}, "agl.reward.agent"),
    ({"agent": "x" * 2000}, "agl.reward.agent"),
    ({"name": 5}, "agl.reward.name"),
    ({"name": ""}, "agl.reward.name"),
    ({"final": "yes"}, "agl.reward.final"),
    ({"call": 5}, "names no model call"),
    ({"call": Raises}, "names no model call"),
    ({"attributes": {"agl.reward.value": "high"}}, "agl.reward.value"),
    ({"attributes": {"agl.choice": "abc"}}, "agl.choice"),
    ({"attributes": {"agl.tag.agent": {"a": 1}}}, "agl.tag.agent"),
    ({"attributes": {5: 1}}, "attributes: the name 5"),
    ({"attributes": [1]}, "attributes is a list"),
    ({"primary_key": "a", "attributes": {"agl.response_token_ids": "abc"}}, "agl.response_token_ids"),
]


@pytest.mark.parametrize(("given", "told"), ODD_REWARDS)
def test_a_reward_that_nobody_could_read_is_refused_where_it_is_emitted(
    given: dict[str, Any], told: str
) -> None:
    given = {name: Raises() if value is Raises else value for name, value in given.items()}
    recorder = Recording("c", None)
    with attempt_context(recorder.context), pytest.raises(ValueError, match=told.replace(".", r"\.")):
        agl.emit_reward(1.0, **given)
    assert recorder.spans == []


def span(**fields: Any) -> Span:
    return Span(**{"rollout_id": "r", "attempt_id": "a", "name": "n", **fields})


ODD_SPANS: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "the span's name"),
    ({"name": "x" * 5000}, "the span's name"),
    ({"span_id": 5}, "the span's span_id"),
    ({"parent_id": ["x"]}, "the span's parent_id"),
    ({"trace_id": None}, "the span's trace_id"),
    ({"start_time": math.nan}, "the span's start_time"),
    ({"end_time": -1.0}, "the span's end_time"),
    ({"end_time": 10**400}, "the span's end_time"),
    ({"start_time": True}, "the span's start_time"),
    ({"status": "odd"}, "the span's status"),
    ({"status_message": b"x"}, "the span's status_message"),
    ({"attributes": None}, "the span's attributes"),
    ({"attributes": {1: 2}}, "the span's attributes"),
    ({"events": {}}, "the span's events"),
    ({"resource": []}, "the span's resource"),
    ({"attributes": {"agl.choice": -1}}, "agl.choice"),
    ({"attributes": {"agl.choice": True}}, "agl.choice"),
    ({"attributes": {"agl.choice": 2**40}}, "agl.choice"),
    ({"attributes": {"agl.tokens_digest": 5}}, "agl.tokens_digest"),
    ({"attributes": {"gen_ai.response.id": ["x"]}}, "gen_ai.response.id"),
    ({"attributes": {"agl.prompt_token_ids": "!!!"}}, "agl.prompt_token_ids"),
    ({"attributes": {"agl.logprobs": "AAA="}}, "agl.logprobs"),
    ({"attributes": {"agl.tag.agent": "x" * 5000}}, "agl.tag.agent"),
    ({"name": semconv.REWARD_SPAN}, "agl.reward.value"),
    ({"name": semconv.REWARD_SPAN, "attributes": {"agl.reward.value": 10**400}}, "agl.reward.value"),
    ({"name": semconv.REWARD_SPAN, "attributes": {"agl.reward.value": 1, "agl.reward.agent": []}}, "agent"),
    ({"rollout_id": "other"}, "belongs to attempt"),
]


@pytest.mark.parametrize(("fields", "told"), ODD_SPANS)
def test_a_span_that_nobody_could_read_is_set_aside_with_the_reason(
    fields: dict[str, Any], told: str
) -> None:
    kept = admit(span(**fields), "r", "a")
    assert kept.name == semconv.BAD_RECORD_SPAN and told in kept.attributes[semconv.BAD_RECORD_REASON]
    check_span(kept)
    assert codec.unpack_span(codec.pack_span(kept), rollout_id="r", attempt_id="a", name="n")
    assert COUNTS.snapshot()["bad-record"] == 1


@pytest.mark.parametrize("given", [None, 5, "span", Raises, {"name": "n"}])
def test_what_is_no_span_is_set_aside_too(given: Any) -> None:
    kept = admit(Raises() if given is Raises else given, "r", "a")
    assert (kept.name, kept.rollout_id, kept.attempt_id) == (semconv.BAD_RECORD_SPAN, "r", "a")
    check_span(kept)


def test_a_sound_span_passes_as_it_is() -> None:
    given = span(attributes={"agl.choice": 1, "agl.tag.turn": 3, "x": [1]}, start_time=1, end_time=2.5)
    assert admit(given, "r", "a") is given and COUNTS.snapshot() == {}
