"""Training chats: what is refused before training, with its line, and what is left out with a count."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from agl_local.sft.chats import ChatDataError, chats_of, check_row, encode, read_chats
from agl_local.text.tokenizer import ChatTokenizer
from plugins.local.tests.driver_fixtures import TEMPLATE, tiny_tokenizer


def chat(*contents: str, **more: Any) -> dict[str, Any]:
    """User and assistant in turn."""
    roles = ("user", "assistant") * len(contents)
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)], **more}


def test_reads_a_file_with_its_digest_and_blank_lines(tmp_path) -> None:
    file = tmp_path / "train.jsonl"
    text = json.dumps(chat("2+3", "five")) + "\n\n" + json.dumps(chat("a\u2028b", "c"), ensure_ascii=False)
    file.write_text(text, encoding="utf-8")
    found = read_chats(file)
    assert [c.messages[0]["content"] for c in found.chats] == ["2+3", "a\u2028b"]
    assert found.chats[1].place == f"{file}:3"
    assert found.sha256 == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not valid JSON"),
        ("[]", "a row is an object"),
        ('{"messages": []}', "at least one message"),
        ('{"prompt": "a", "completion": "b"}', "unknown key 'prompt'; messages replaces it"),
        (json.dumps(chat("a")), "no assistant message to train on"),
        (json.dumps({"messages": [{"role": "robot", "content": "a"}]}), "message 1: needs a role"),
        (json.dumps({"messages": ["a"]}), "message 1: needs a role"),
        (json.dumps(chat("a", "")), "message 2: the assistant message has no content"),
        (json.dumps({"messages": [{"role": "user", "content": 3}]}), "content must be text, not int"),
        (json.dumps(chat("a", "b", tools="x")), "tools must be a list"),
        (
            json.dumps({"messages": [{"role": "user", "content": "a", "weight": 0}]}),
            "weight is 0 or 1, for assistant messages",
        ),
        (
            json.dumps({"messages": [{"role": "assistant", "content": "a", "weight": 0}]}),
            "no assistant message to train on",
        ),
        (
            json.dumps({"messages": [{"role": "assistant", "content": "a", "function_call": {}}]}),
            "tool_calls replaces it",
        ),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line(tmp_path, line: str, problem: str) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text(json.dumps(chat("2+3", "five")) + "\n" + line + "\n")
    with pytest.raises(ChatDataError, match=r"train\.jsonl:2[:,] ") as raised:
        read_chats(file)
    assert str(file) in str(raised.value) and problem in str(raised.value)


def test_a_missing_an_empty_and_a_binary_file(tmp_path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    for name, problem in (("none", "No such file"), ("empty", "no rows"), ("binary", "UTF-8")):
        with pytest.raises(ChatDataError, match=problem):
            read_chats(tmp_path / f"{name}.jsonl")


def test_rows_of_a_program_are_counted_from_one() -> None:
    with pytest.raises(ChatDataError, match="made, row 2: messages"):
        chats_of([chat("a", "b"), {}], "made")
    with pytest.raises(ChatDataError, match="made: there are no rows"):
        chats_of([], "made")
    one, same = chats_of([chat("a", "b")], "made"), chats_of([chat("a", "b")], "also made")
    assert one.sha256 == same.sha256 != chats_of([chat("a", "c")], "made").sha256


def test_calls_without_content_are_in_the_format() -> None:
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
    found = check_row({"messages": [{"role": "user", "content": "a"}, called], "tools": [{}]}, "row")
    assert found.messages[1]["content"] is None and found.tools == [{}]


def test_chats_over_max_len_are_left_out_whole_and_named() -> None:
    tokenizer = tiny_tokenizer()
    chats = chats_of([chat("a", "b"), chat("a" * 60, "b"), chat("a", "b" * 60)], "made").chats
    found = encode(tokenizer, chats, 60)
    assert (found.chats, len(found.samples), found.too_long) == (1, 1, ("made, row 2", "made, row 3"))
    assert found.trained == len(found.samples[0].trained)
    with pytest.raises(ChatDataError, match="than 8 tokens: raise max_len; the policy has 256 positions"):
        encode(tokenizer, chats, 8, 256)
    with pytest.raises(ChatDataError, match="all 3 chats have more than 8 tokens: more than the policy has"):
        encode(tokenizer, chats, 8, 8)


def test_a_chat_that_the_template_refuses_is_named() -> None:
    tokenizer = tiny_tokenizer()
    endless = ChatTokenizer(
        tokenizer.backend, chat_template=TEMPLATE.replace("<|im_end|>\n", "\n"), eos_ids=tokenizer.eos_ids
    )
    with pytest.raises(ChatDataError, match=r"made, row 1: .* would never stop"):
        encode(endless, chats_of([chat("a", "b")], "made").chats, 100)


def test_a_message_of_weight_zero_is_context() -> None:
    tokenizer = tiny_tokenizer()
    row = chat("a", "wrong", "again", "right")
    row["messages"][1]["weight"] = 0
    (sample,) = encode(tokenizer, chats_of([row], "made").chats, 200).samples
    assert tokenizer.decode([sample.ids[t] for t in sample.trained]) == "right<|im_end|>"
    assert "wrong" in tokenizer.decode(sample.ids)
