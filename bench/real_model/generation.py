"""Tokens per second of prefill and decode, by batch: every subject has the same prompts, in turn."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, field
from typing import Any

from children import Child, SubjectError
from texts import Texts
from work import Limits, decode_seconds, forward_operations

from agl_local.network.config import ModelConfig


@dataclass(frozen=True)
class Sizes:
    """Tokens of a prompt, new tokens of an answer, answers at a time, and repetitions."""

    prompt: int
    new: int
    batches: tuple[int, ...]
    rounds: int


@dataclass
class Taken:
    """Seconds that one subject took at one batch size, by round."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    equal: list[float] = field(default_factory=list)
    """Share of the tokens that equal the first subject's."""


def measure(
    subjects: list[Child], texts: Texts, sizes: Sizes, shape: ModelConfig, limits: Limits
) -> list[dict[str, Any]]:
    """Return a row for each subject and batch; a subject that fails leaves, with its reason as its last row.

    One request is for a single token: that is prefill. One with other prompts is for ``new`` more tokens: its
    further seconds are decode. Subjects take turns, and a round begins with the next one each time.
    """
    taken = {(child.name, batch): Taken() for child in subjects for batch in sizes.batches}
    failed: dict[str, str] = {}
    for round_ in range(-1, sizes.rounds):  # the first one warms up
        for batch in sizes.batches if round_ >= 0 else (min(8, max(sizes.batches)),):
            short, long = ([texts.piece(sizes.prompt) for _ in range(batch)] for _ in range(2))
            first: list[list[int]] | None = None
            turn = round_ % len(subjects)
            for child in subjects[turn:] + subjects[:turn]:
                if child.name in failed:
                    continue
                try:
                    once = child.ask("generate", prompts=short, new=1)
                    whole = child.ask("generate", prompts=long, new=1 + sizes.new)
                except SubjectError as error:
                    failed[child.name] = str(error)
                    continue
                _check(whole.result, batch, 1 + sizes.new, child.name)
                first = first or whole.result
                if round_ >= 0:
                    one = taken[child.name, batch]
                    one.prefill.append(once.seconds)
                    one.decode.append(whole.seconds - once.seconds)
                    one.equal.append(_equal(first, whole.result))
        print(f"generation: round {round_ + 1} of {sizes.rounds}", file=sys.stderr, flush=True)
    rows = [
        _row(child, batch, taken[child.name, batch], sizes, shape, limits)
        for child in subjects
        for batch in sizes.batches
        if taken[child.name, batch].prefill
    ]
    return rows + [{"subject": name, "not_run": reason} for name, reason in failed.items()]


def _row(
    child: Child, batch: int, one: Taken, sizes: Sizes, shape: ModelConfig, limits: Limits
) -> dict[str, Any]:
    operations = batch * forward_operations(shape, [(0, sizes.prompt)], 1)
    least = {
        "prefill": operations / limits.operations,
        "decode": decode_seconds(shape, limits, batch, sizes.prompt, sizes.new),
    }
    row: dict[str, Any] = {"subject": child.name, "batch": batch}
    for name, tokens, seconds in (
        ("prefill", batch * sizes.prompt, one.prefill),
        ("decode", batch * sizes.new, one.decode),
    ):
        middle = statistics.median(seconds)
        row[f"{name}_tokens_per_second"] = round(tokens / middle, 1)
        row[f"{name}_spread"] = [round(tokens / s, 1) for s in (max(seconds), min(seconds))]
        row[f"{name}_roofline"] = round(least[name] / middle, 3)
    return row | {"tokens_equal": round(statistics.mean(one.equal), 3)}


def _equal(one: list[list[int]], other: list[list[int]]) -> float:
    pairs = [(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def _check(answers: list[list[int]], batch: int, tokens: int, name: str) -> None:
    if [len(answer) for answer in answers] != [tokens] * batch:
        raise RuntimeError(f"{name} gave answers of {[len(answer) for answer in answers]} tokens")
