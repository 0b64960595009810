"""The desk's small policy: how it reads, and what the shipped one does."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("torch")

from agl_local.policy.folder import load_policy
from agl_local.sft.chats import chats_of
from agl_local.sft.finetune import SftSettings, finetune
from desk.clerk import calls, says
from desk.evaluate import POLICY_FOLDER, mean, message, rewards
from desk.shop import SCHEMAS
from desk.tasks import KINDS, tasks
from desk.teacher import ERROR_RATE, chats
from desk.warmstart import scaffold, tokenizer
from small_policy.teaching import fresh


def test_fixed_pieces_are_one_token_and_every_talk_is_short() -> None:
    words = tokenizer()
    for piece in scaffold():
        (token,) = words.encode(piece)
        assert not words.is_special(token)
    for chat in islice(chats(5, ERROR_RATE), 50):
        text = words.render(chat["messages"], chat["tools"], add_generation_prompt=False)
        assert len(words.encode(text)) <= 128


def test_an_order_is_spelled_alike_wherever_it_stands() -> None:
    words = tokenizer()
    for before in ("Hello. I want to cancel my order ", '{"id": "', "It is "):
        for name in ("K47", "anna@example.org", "4500"):
            assert words.encode(before + name)[1:] == words.encode(name)


def test_what_a_model_wrote_is_the_message_that_the_agent_gets() -> None:
    text = '<tool_call>\n{"name": "refund", "arguments": {"order_id": "K47", "cents": 4500}}\n</tool_call>'
    (called,) = message(text)["tool_calls"]
    assert (
        called["function"] == calls("refund", {"order_id": "K47", "cents": 4500})["tool_calls"][0]["function"]
    )
    assert message("It is done.") == says("It is done.")


def test_the_shipped_policy_reads_as_its_tokenizer_is_made_and_starts_below_half() -> None:
    policy = load_policy(POLICY_FOLDER)
    chat = next(chats(7, ERROR_RATE))
    shown = policy.tokenizer.render(chat["messages"], SCHEMAS)
    assert policy.tokenizer.encode(shown) == tokenizer().encode(shown)
    given = tasks(4 * len(KINDS), held_out=True)
    found = rewards(policy, given)
    assert sum(found) / len(found) < 0.5
    assert mean(found, given, "cancel, granted") > 0.7, "it does not copy what it reads"


def test_the_card_says_what_the_policy_is() -> None:
    card = (Path(POLICY_FOLDER) / "README.md").read_text(encoding="utf-8")
    parameters = sum(one.numel() for one in load_policy(POLICY_FOLDER).model.parameters())
    assert f"{parameters:,} parameters" in card and 400_000 < parameters < 700_000


@pytest.mark.slow
def test_a_policy_learns_a_talk_by_heart() -> None:
    words = tokenizer()
    policy = fresh(words, 0)
    lessons = chats_of(islice(chats(1, 0.0), 1), "lesson").chats
    report = finetune(policy, lessons, SftSettings(epochs=60, lr=3e-3, batch_size=1, max_len=512))
    assert report.loss < 0.1 < report.loss_first
