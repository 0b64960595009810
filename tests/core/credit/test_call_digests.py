"""Digests of calls: what is shared is hashed once, and where the memory lies makes no difference."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec
import pytest
from core.credit.builders import PATIENT
from core.store.conversations import conversation
from core.store.test_calls import talk, through_a_file
from hypothesis import given, strategies as st

from agentlightning.credit.digest import digest_of
from agentlightning.credit.fingerprint import CallDigests
from agentlightning.store.calls import whole_calls
from agentlightning.types import Call


def digests(calls: list[Call]) -> list[tuple[str, dict[str, str]]]:
    made = CallDigests()
    return [(digest_of(made.read(call)), made.parts(call)) for call in calls]


@PATIENT
@given(st.randoms(use_true_random=False))
def test_calls_that_were_read_have_the_digests_of_the_recorded_ones(random: Random) -> None:
    calls = conversation(random)
    assert digests(whole_calls(through_a_file(calls))) == digests(calls)


CHANGES: dict[str, Callable[[Call], Call]] = {
    "token ids": lambda c: msgspec.structs.replace(c, prompt_ids=[*(c.prompt_ids or ())[:-1], 9]),
    "request": lambda c: msgspec.structs.replace(
        c, request={**(c.request or {}), "messages": [*(c.request or {})["messages"][:-1], {"role": "user"}]}
    ),
    "logprobs": lambda c: msgspec.structs.replace(c, logprobs=[-1.0, *(c.logprobs or ())[1:]]),
    "policy version": lambda c: msgspec.structs.replace(c, policy_versions=[7] * len(c.response_ids or ())),
}


@pytest.mark.parametrize("part", CHANGES)
def test_a_change_is_seen_in_its_part_alone(part: str) -> None:
    calls = talk(3, tools=[{"name": "look", "description": "looks around " * 9}])
    changed = [*calls[:2], CHANGES[part](calls[2])]
    before, after = digests(calls), digests(changed)
    assert after[:2] == before[:2]
    assert [name for name in before[2][1] if before[2][1][name] != after[2][1][name]] == [part]
    assert (before[2][0] != after[2][0]) == (part != "request")


def test_moving_an_id_from_prompt_to_response_changes_the_digest() -> None:
    (call,) = talk(1)
    assert call.prompt_ids is not None and call.response_ids is not None
    moved = msgspec.structs.replace(
        call, prompt_ids=call.prompt_ids[:-1], response_ids=[call.prompt_ids[-1], *call.response_ids]
    )
    assert digests([call])[0][1]["token ids"] != digests([moved])[0][1]["token ids"]
