"""Build the small policy the CPU demo starts from: ``python -m calc_x.warmstart --out FOLDER --seed 1``.

A Qwen2-shaped network of half a million parameters, initialised at random, learns the teacher's traces: the
loss is the mean negative log-likelihood of the tokens of both assistant turns, their end tokens included. One
thread and fixed seeds, so the same machine builds the same bits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from agl_local.policy.folder import Policy
from agl_local.text.tokenizer import ChatTokenizer
from calc_x.evaluate import POLICY, table
from calc_x.teacher import AUTOGEN, Example, Wording, traces
from calc_x.tokenizer import build_tokenizer, tokenizer_of_template
from small_policy import teaching
from small_policy.teaching import Row

STEPS = 450
FIRST_CALLS, SECOND_CALLS = 96, 32
"""Rows of each step. Writing the expression is the hard part, repeating the result the easy one."""
HELD_OUT = 400
"""Problems the card's figures are measured on."""
CARD = Path(__file__).resolve().parent / "card.md"


def row(tokenizer: ChatTokenizer, example: Example) -> Row:
    """An example as tokens."""
    return teaching.row(tokenizer, example.messages, example.reply, example.tools)


def batches(
    tokenizer: ChatTokenizer, seed: int, wordings: Sequence[Wording] = (AUTOGEN,)
) -> Iterator[list[list[Row]]]:
    """The rows of each step, in micro-batches."""
    stream = traces(seed, wordings)
    while True:
        pairs = list(islice(stream, FIRST_CALLS))
        examples = [first for first, _ in pairs] + [second for _, second in pairs[:SECOND_CALLS]]
        yield teaching.micro_batches([row(tokenizer, example) for example in examples])


def build(
    seed: int,
    steps: int = STEPS,
    log_every: int = 50,
    *,
    tokenizer: ChatTokenizer | None = None,
    wordings: Sequence[Wording] = (AUTOGEN,),
) -> Policy:
    """Train a fresh policy for ``steps`` steps of ``FIRST_CALLS + SECOND_CALLS`` rows."""
    tokenizer = tokenizer or build_tokenizer()
    policy = teaching.fresh(tokenizer, seed)
    return teaching.teach(policy, batches(tokenizer, seed, wordings), steps, log_every)


def main() -> None:
    """Build, save, evaluate, and write the card with what was measured."""
    parser = argparse.ArgumentParser(prog="python -m calc_x.warmstart", description="Build the start policy.")
    parser.add_argument("--out", type=Path, default=POLICY, help="folder to write (default: the shipped one)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--template", type=Path, help="a published chat template (.jinja) for the policy")
    arguments = parser.parse_args()
    begin = time.process_time()
    tokenizer = tokenizer_of_template(arguments.template) if arguments.template else build_tokenizer()
    policy = build(arguments.seed, arguments.steps, tokenizer=tokenizer)
    made = {"seed": arguments.seed, "steps": arguments.steps, "seconds": time.process_time() - begin}
    teaching.write(policy, arguments.out, CARD, table, HELD_OUT, **made)


if __name__ == "__main__":
    main()
