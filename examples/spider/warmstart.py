"""Build the small start policy from nothing: a Qwen2-shaped network taught by the scripted teacher.

    python -m spider.warmstart [--out FOLDER] [--seed N] [--steps N]

Loss on the assistant turns only, AdamW with a cosine. It uses one thread and writes the policy folder and its
card; the same command gives the same weights on the same machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from agl_local.policy.folder import Policy
from agl_local.text.tokenizer import ChatTokenizer
from small_policy import teaching
from small_policy.teaching import Row
from spider.evaluate import POLICY, table
from spider.teacher import Example, examples
from spider.tokenizer import build_tokenizer

STEPS = 450
WRITES, CHECKS, REWRITES = 72, 24, 32
"""Rows of each step. Writing is the hard part, and correcting is writing once more."""
HELD_OUT = 444
"""Questions the card's figures are measured on: all that there are."""
CARD = Path(__file__).resolve().parent / "card.md"


def row(tokenizer: ChatTokenizer, example: Example) -> Row:
    """An example as tokens."""
    return teaching.row(tokenizer, example.messages, {"role": "assistant", "content": example.reply})


def batches(tokenizer: ChatTokenizer, seed: int) -> Iterator[list[list[Row]]]:
    """The rows of each step, in micro-batches of similar length so that little is padding."""
    stream = examples(seed)
    while True:
        chosen: list[Example] = []
        wanted = [WRITES, CHECKS, REWRITES]
        while any(wanted):
            for place, example in enumerate(next(stream)):
                if example is not None and wanted[place]:
                    wanted[place] -= 1
                    chosen.append(example)
        yield teaching.micro_batches([row(tokenizer, example) for example in chosen])


def build(seed: int, steps: int = STEPS, log_every: int = 50) -> Policy:
    """Train a fresh policy for ``steps`` steps."""
    tokenizer = build_tokenizer()
    return teaching.teach(teaching.fresh(tokenizer, seed), batches(tokenizer, seed), steps, log_every)


def main() -> None:
    """Build, save, evaluate, and write the card with what was measured."""
    parser = argparse.ArgumentParser(prog="python -m spider.warmstart", description="Build the start policy.")
    parser.add_argument("--out", type=Path, default=POLICY, help="folder to write (default: the shipped one)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    begin = time.process_time()
    policy = build(arguments.seed, arguments.steps)
    made = {"seed": arguments.seed, "steps": arguments.steps, "seconds": time.process_time() - begin}
    teaching.write(policy, arguments.out, CARD, table, HELD_OUT, **made)


if __name__ == "__main__":
    main()
