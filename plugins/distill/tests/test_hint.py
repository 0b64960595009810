"""Hints stand in the teacher's prompt alone: where, and what becomes of a call that has none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentlightning.types import Call, Record, Rollout, Row
from agl_distill.hint import hint_of, hinted_row, with_hint
from agl_local.inspect import LocalInspector
from agl_local.policy.folder import load_policy
from agl_local.text.tokenizer import ChatTokenizer
from plugins.local.tests.driver_fixtures import make_row

RECORD = Record(rollout=Rollout("ro", input={"gold": "42"}, group_id="g"))


def test_it_is_appended_to_the_last_message_of_the_user() -> None:
    system, user = {"role": "system", "content": "s"}, {"role": "user", "content": "ask"}
    tool = {"role": "tool", "content": "7"}
    said = [system, user, {"role": "assistant", "content": "x"}, {"role": "user", "content": "again"}, tool]
    assert with_hint(said, "it is 42") == [*said[:3], {"role": "user", "content": "again\n\nit is 42"}, tool]
    assert said[3]["content"] == "again"
    parts = [{"role": "user", "content": [{"type": "text", "text": "ask"}]}]
    assert with_hint(parts, "h")[0]["content"] == [
        {"type": "text", "text": "ask"}, {"type": "text", "text": "\n\nh"},
    ]  # fmt: skip
    assert with_hint([system], "h") == [system, {"role": "user", "content": "h"}]


def call_and_row(folder: Path, response: Sequence[int] = (40, 41, 42)) -> tuple[Call, Row, ChatTokenizer]:
    tokenizer = ChatTokenizer.load(folder)
    messages = [{"role": "user", "content": "ask"}]
    prompt = tokenizer.apply(messages)
    ids = [*prompt, *response]
    row = make_row(load_policy(folder).model, ids, [(len(prompt), len(ids))])
    call = Call(
        "row-0", "ro", "at", prompt_ids=prompt, response_ids=list(response), request={"messages": messages}
    )
    return call, row, tokenizer


def test_the_prompt_is_rendered_again_and_the_response_is_as_it_was_sampled(student: Path) -> None:
    call, row, tokenizer = call_and_row(student)
    found = hinted_row(row, call, "it is 42", tokenizer)
    assert isinstance(found, Row)
    shown = tokenizer.decode(found.token_ids)
    assert "ask\n\nit is 42<|im_end|>" in shown and shown.endswith(tokenizer.decode([40, 41, 42]))
    n = len(found.token_ids) - 3
    assert found.mask == [0] * n + [1] * 3 and list(found.token_ids)[n:] == [40, 41, 42]
    assert found.logprobs[n:] == row.logprobs[-3:]
    assert "42" not in tokenizer.decode(list(row.token_ids)[:-3])  # the policy's row has no hint


def test_a_guided_answer_is_scored_among_the_same_choices(student: Path) -> None:
    call, row, tokenizer = call_and_row(student)
    start = len(call.prompt_ids or ())
    choices = [[40, 41, 42], [50, 51, 52]]
    row.allowed = {start: choices}
    found = hinted_row(row, call, "it is 42", tokenizer)
    assert isinstance(found, Row) and found.allowed == {len(found.token_ids) - 3: choices}
    (scores,) = LocalInspector(student).logprobs([found])
    assert scores[-3] < 0.0 and scores[-2:] == [0.0, 0.0]  # after the first token only one choice is left


def test_a_prompt_that_the_template_does_not_give_again_is_not_guessed(student: Path) -> None:
    call, row, tokenizer = call_and_row(student)
    call.request = {"messages": [{"role": "user", "content": "other"}]}
    assert hinted_row(row, call, "h", tokenizer) == "distill-not-rendered"
    call.request = {"prompt": "ask"}
    assert hinted_row(row, call, "h", tokenizer) == "distill-not-rendered"
    call.request = {"messages": ["no message"]}
    assert hinted_row(row, call, "h", tokenizer) == "distill-not-rendered"


@pytest.mark.parametrize(
    ("gives", "text", "why"),
    [("it is 42", "it is 42", ""), ("", "", "distill-no-hint"), (None, "", "distill-no-hint"),
     (7, "", "distill-hint-error"), (KeyError("gold"), "", "distill-hint-error")],
)  # fmt: skip
def test_what_the_function_gives(gives: Any, text: str, why: str) -> None:
    asked: list[Any] = []

    def hint(task: Any, rollout: Record, group: Sequence[Record]) -> Any:
        asked.append((task, rollout, group))
        if isinstance(gives, Exception):
            raise gives
        return gives

    assert hint_of(hint, RECORD, [RECORD]) == (text, why)
    assert asked == [({"gold": "42"}, RECORD, [RECORD])]
