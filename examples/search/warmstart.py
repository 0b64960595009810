"""Build the small start policy from nothing: ``python -m search.warmstart --out FOLDER --seed 1``.

A Qwen2-shaped network of random weights learns the teacher's chats by what ``agl sft`` does, every turn of
the assistant and nothing that the tools said. One thread and fixed seeds: the same bits on the same machine.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

from agl_local.policy.folder import Policy
from agl_local.sft.finetune import SftSettings
from agl_local.text.tokenizer import ChatTokenizer
from search.agent import SYSTEM
from search.corpus import FIELDS, documents
from search.evaluate import POLICY, table
from search.questions import ASKED, CLUES, FACTS, PARTNERS, QUESTION, facts
from search.teacher import ERROR_RATE, answers, chats, world
from small_policy import teaching
from small_policy.reading import tokenizer_of

HERE = Path(__file__).resolve().parent
RIGHT, WRONG = 20_000, 3_000
"""Chats of the teacher before it errs, and after."""
HELD_OUT = 256
SETTINGS = SftSettings(epochs=1, lr=2e-3, batch_size=16, max_len=1024)
ERRING = replace(SETTINGS, lr=5e-4)
TEMPLATE = HERE.parent / "quickstart" / "template.jinja"
BPE_SIZE = 1024
"""At most: bytes, special tokens and merges. The scaffold tokens come on top."""


def scaffold() -> tuple[str, ...]:
    """The fixed pieces of these prompts, each one token; what follows one is spelled as at a line's start."""
    asked = [QUESTION.partition("{clue}")[0].format(asked=FACTS[fact].name) for fact in ASKED]
    clues = [clue.partition("{clue}")[0] for clue in CLUES.values()]
    pieces = (
        "system\n", "user\n", "assistant\n", SYSTEM,
        "\nTools, called as JSON within <tool_call></tool_call>:\nsearch(words)\nread(title)",
        *asked, *clues, " exports most to?", " imports most from?",
        *names(), *(f"\n{fact.label}: " for fact in FACTS.values()), *(f" {section}" for section in FIELDS),
        '<tool_call>\n{"name": "search", "arguments": {"words": "',
        '<tool_call>\n{"name": "read", "arguments": {"title": "',
        '"}}\n</tool_call>', "<tool_response>\n", "\n</tool_response>",
    )  # fmt: skip
    return tuple(dict.fromkeys(pieces))


def names() -> list[str]:
    """What is looked up and answered: countries, capitals, peaks and the like, each one token to copy."""
    found = {one for fact, values in facts().items() if fact not in PARTNERS for one in values.values()}
    return sorted({*found, *(one.country for one in documents())})


def tokenizer() -> ChatTokenizer:
    """The policy's tokenizer over the documents that are not held out; the same every time."""
    texts = (f"{one.title}\n{one.text}" for one in world(Random(0)))
    return tokenizer_of(texts, BPE_SIZE, scaffold(), TEMPLATE)


def build(seed: int, right: int = RIGHT, wrong: int = WRONG, log_every: int = 25) -> Policy:
    """Train a fresh policy on ``right`` chats, then on ``wrong`` of the teacher that errs."""
    lessons = (
        (answers(islice(chats(seed, 0.0), right)), SETTINGS),
        (islice(chats(seed, ERROR_RATE), wrong), ERRING),
    )
    return teaching.teach_chats(tokenizer(), lessons, seed, log_every, layers=3, tied=True)


def main() -> None:
    """Build, save, evaluate, and write the card with what was measured."""
    parser = argparse.ArgumentParser(prog="python -m search.warmstart", description="Build the start policy.")
    parser.add_argument("--out", type=Path, default=POLICY, help="folder to write (default: the shipped one)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begin = time.process_time()
    policy = build(arguments.seed)
    made = {"seed": arguments.seed, "chats": RIGHT + WRONG, "seconds": time.process_time() - begin}
    teaching.write(policy, arguments.out, HERE / "card.md", table, HELD_OUT, **made)


if __name__ == "__main__":
    main()
