"""Build the small start policy from nothing: ``python -m search.warmstart --out FOLDER --seed 1``.

A Qwen2-shaped network of random weights first learns to read what stands in the document before it. Then it
learns the teacher's chats by what ``agl sft`` does, every turn of the assistant and nothing that the tools
said. One thread and fixed seeds: the same bits on the same machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
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
from search.teacher import ERROR_RATE, TOOLS, Reading, chats, readings, world
from small_policy import teaching
from small_policy.reading import tokenizer_of

HERE = Path(__file__).resolve().parent
ENDS, READINGS, ROWS = 500, 1000, 16
"""Steps in which only ends of chats are learned, then ends and partners; and the rows of a step."""
PROMPT_WEIGHT = 1.0
"""What a prompt's tokens weigh beside an answer's in the first of them."""
RIGHT, WRONG = 12_000, 6_000
"""Chats of the teacher before it errs, and after."""
HELD_OUT = 256
SETTINGS = SftSettings(epochs=1, lr=1e-3, batch_size=16, max_len=1024)
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


def batches(chat: ChatTokenizer, read: Iterator[Reading]) -> Iterator[list[list[teaching.Row]]]:
    """What was read as the micro-batches of each step."""
    while True:
        yield teaching.micro_batches([teaching.row(chat, *one, TOOLS) for one in islice(read, ROWS)])


def build(seed: int) -> Policy:
    """A policy that learns to read an answer, then to tell exports from imports too, then whole chats, then
    those of the teacher that errs. An answer is one token of many in a chat: a network that learns whole
    chats from the first step on does not learn to read in 20,000 of them.
    """
    words = tokenizer()
    policy = teaching.fresh(words, seed, tied=True)
    ends, both = readings(chats(seed + 1, 0.0), 1), readings(chats(seed + 2, 0.0), 2)
    teaching.teach(policy, batches(words, ends), ENDS, prompt_weight=PROMPT_WEIGHT)
    teaching.teach(policy, batches(words, both), READINGS)
    lessons = (
        (islice(chats(seed, 0.0), RIGHT), SETTINGS),
        (islice(chats(seed, ERROR_RATE), WRONG), ERRING),
    )
    return teaching.teach_chats(policy, lessons)


def main() -> None:
    """Build, save, evaluate, and write the card with what was measured."""
    parser = argparse.ArgumentParser(prog="python -m search.warmstart", description="Build the start policy.")
    parser.add_argument("--out", type=Path, default=POLICY, help="folder to write (default: the shipped one)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    begin = time.process_time()
    policy = build(arguments.seed)
    made = {
        "seed": arguments.seed,
        "readings": (ENDS + READINGS) * ROWS,
        "right": RIGHT,
        "wrong": WRONG,
        "seconds": time.process_time() - begin,
    }
    teaching.write(policy, arguments.out, HERE / "card.md", table, HELD_OUT, **made)


if __name__ == "__main__":
    main()
