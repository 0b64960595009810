"""Build the small start policy from nothing: ``python -m desk.warmstart --out FOLDER --seed 1``.

A Qwen2-shaped network of random weights learns the teacher's chats by what ``agl sft`` does: every message
of the desk, and nothing that customer and tools said. One thread and fixed seeds: the same bits on the same
machine.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

from agl_local.policy.folder import Policy
from agl_local.sft.finetune import SftSettings
from agl_local.text.tokenizer import ChatTokenizer
from desk.clerk import ASK, DONE, REFUSALS
from desk.evaluate import POLICY_FOLDER, table
from desk.shop import NO_ORDER, TOOLS
from desk.talk import POLICY
from desk.teacher import ERROR_RATE, chats
from small_policy import teaching
from small_policy.reading import tokenizer_of

HERE = Path(__file__).resolve().parent
RIGHT, WRONG = 12_000, 4_000
"""Chats of the teacher that keeps the rules, and then of the one that errs."""
HELD_OUT = 576
LESSONS = (
    (0.0, RIGHT, SftSettings(epochs=3, lr=2e-3, batch_size=16, max_len=512)),
    (ERROR_RATE, WRONG, SftSettings(epochs=1, lr=5e-4, batch_size=16, max_len=512)),
)
TEMPLATE = HERE.parent / "quickstart" / "template.jinja"
BPE_SIZE = 512
"""At most: bytes, special tokens and merges, which end when each word of the talks is one token. The scaffold
tokens come on top.
"""
TEXTS = 500


def scaffold() -> tuple[str, ...]:
    """The fixed pieces of these prompts, each one token; what follows one is spelled as at a line's start."""
    offered = "".join(f"\n{name}({', '.join(given)})" for name, (_, given) in TOOLS.items())
    pieces = (
        "system\n", "user\n", "assistant\n", POLICY,
        f"\nTools, called as JSON within <tool_call></tool_call>:{offered}",
        "Hello. I want to cancel my order ", "Hello. I want my money back for order ",
        "Hello. Please send my order ", " to locker ", "It is ", "@example.org",
        ASK, DONE, *REFUSALS.values(),
        *(
            f'<tool_call>\n{{"name": "{name}", "arguments": {{"{next(iter(given))}": "'
            for name, (_, given) in TOOLS.items()
        ),
        '", "order_id": "', '", "locker": ', '", "cents": ', '"}}\n</tool_call>', "}}\n</tool_call>",
        "<tool_response>\n", "\n</tool_response>", NO_ORDER,
        '{"id": "', '", "email": "', '", "item": "', ', "status": "', '", "delivered": ', ', "locker": ',
        ', "refunded": ',
    )  # fmt: skip
    return tuple(dict.fromkeys(pieces))


def tokenizer() -> ChatTokenizer:
    """The policy's tokenizer over what customers and tools say in training; the same every time."""
    said = (one["content"] for chat in islice(chats(0, 0.0), TEXTS) for one in chat["messages"][1:])
    return tokenizer_of((text for text in said if text), BPE_SIZE, scaffold(), TEMPLATE)


def build(seed: int, log_every: int = 25) -> Policy:
    """Train a fresh policy on the teacher's chats."""
    lessons = ((islice(chats(seed, errs), count), settings) for errs, count, settings in LESSONS)
    return teaching.teach_chats(teaching.fresh(tokenizer(), seed), lessons, log_every)


def main() -> None:
    """Build, save, evaluate, and write the card with what was measured."""
    parser = argparse.ArgumentParser(prog="python -m desk.warmstart", description="Build the start policy.")
    parser.add_argument(
        "--out", type=Path, default=POLICY_FOLDER, help="folder to write (default: the shipped one)"
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    policy = build(arguments.seed)
    made = {"seed": arguments.seed, "right": RIGHT, "wrong": WRONG}
    teaching.write(policy, arguments.out, HERE / "card.md", table, HELD_OUT, **made)


if __name__ == "__main__":
    main()
