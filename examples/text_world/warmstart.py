"""Build the small start policy from nothing: ``python -m text_world.warmstart --out FOLDER --seed 1``.

A Qwen2-shaped network of random weights learns what the teacher says, turn by turn. One thread and fixed
seeds: the same bits on the same machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from textworld.challenges.tw_cooking import cooking

from agl_local.policy.folder import Policy
from agl_local.text.tokenizer import ChatTokenizer
from small_policy import teaching
from small_policy.reading import tokenizer_of
from text_world.agent import SYSTEM
from text_world.evaluate import POLICY, table
from text_world.notes import DONE
from text_world.playing import DIRECTIONS, STATES
from text_world.teacher import ERROR_RATE, turns

HERE = Path(__file__).resolve().parent
STEPS = 1800
ERRING = 360
"""The last steps, in which the teacher errs."""
ROWS = 32
"""Turns of a step."""
MIXED = 40
"""Steps over which the turns of games are mixed."""
SEEN = 2
"""How often each turn is seen: to play a game takes as long as to learn its turns."""
LAYERS = 3
PROMPT_WEIGHT = 0.5
"""What a prompt's tokens weigh beside an answer's."""
HELD_OUT = 192
TEMPLATE = HERE.parent / "quickstart" / "template.jinja"
BPE_SIZE = 512
"""At most: bytes, special tokens and merges. The words of the games come on top."""


def words() -> tuple[str, ...]:
    """The fixed pieces of these prompts and answers, each one token: the generator's names, and the notes'
    words.
    """
    doors = [name for door in cooking.DOORS for name in door["names"]]
    names = (*cooking.FOODS, *cooking.ENTITIES, "meal", *doors)
    rooms = [room for group in cooking.ROOMS for room in group]
    verbs = ("go", "take", "open", "close", "examine", "put", "drop", "cook", *DONE)
    small = ("new", "done", "by", "on", "in", "from", "with", "carried", "here")
    inner = (*DIRECTIONS, *STATES, *rooms, *names, *verbs, *small)
    pieces = (
        "system\n", "user\n", "assistant\n", SYSTEM, "Room:", "\nHere:", "\nExits:", "\nCarried:", "\nList:",
        "\nKnown:", "\nLast:", " not read", " not seen", " nothing", " none",
        "; more to explore", " more to explore", "explore", " prepared", " (closed)",
        ": done", ": refused", "prepare meal", "eat meal", *verbs, *(f" {word}" for word in inner),
        ",", ";", ":",
    )  # fmt: skip
    return tuple(dict.fromkeys(pieces))


def tokenizer() -> ChatTokenizer:
    """The policy's tokenizer; the same every time."""
    texts = (f"{messages[-1]['content']}\n{said}" for messages, said in islice(turns(1, 0.0), 200))
    return tokenizer_of(texts, BPE_SIZE, words(), TEMPLATE)


def batches(chat: ChatTokenizer, seed: int, steps: int) -> Iterator[list[list[teaching.Row]]]:
    """The teacher's turns as the micro-batches of each step."""
    right, wrong = turns(seed, 0.0), turns(seed, ERROR_RATE)
    for first_step in range(0, steps, MIXED * SEEN):
        told = right if first_step < steps - ERRING else wrong
        rows = [
            teaching.row(chat, messages, {"role": "assistant", "content": said})
            for messages, said in islice(told, MIXED * ROWS)
        ]
        for first in [*range(MIXED)] * SEEN:
            yield teaching.micro_batches(rows[first::MIXED])


def build(seed: int, steps: int = STEPS, log_every: int = 50) -> Policy:
    """Train a fresh policy for ``steps`` steps."""
    chat = tokenizer()
    policy = teaching.fresh(chat, seed, LAYERS)
    return teaching.teach(policy, batches(chat, seed, steps), steps, log_every, PROMPT_WEIGHT)


def main() -> None:
    """Build, save, evaluate, and write the card with what was measured."""
    parser = argparse.ArgumentParser(
        prog="python -m text_world.warmstart", description="Build the start policy."
    )
    parser.add_argument("--out", type=Path, default=POLICY, help="folder to write (default: the shipped one)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    begin = time.process_time()
    policy = build(arguments.seed, arguments.steps)
    made = {
        "seed": arguments.seed,
        "steps": arguments.steps,
        "erring": ERRING,
        "turns": arguments.steps * ROWS // SEEN,
        "seen": SEEN,
        "seconds": time.process_time() - begin,
    }
    teaching.write(policy, arguments.out, HERE / "card.md", table, HELD_OUT, **made)


if __name__ == "__main__":
    main()
