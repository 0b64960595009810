"""Measures a judge on pairs of which people have said which is better.

Each pair is shown in both orders, ``repeats`` times each. Its figures: how often the judge agrees with the
label over both orders, with an interval over pairs; how often it prefers what stands first, beyond a half;
how often the orders contradict each other; how often the same question was answered otherwise; what it cost.
Invariant: an answer that cannot be used is counted, and is neither right nor wrong.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentlightning.algorithms.intervals import mean_interval
from agentlightning.types import UsageError
from agl_judge.client import JudgeClient
from agl_judge.graders.relative import ABOUT, PAIRING, read_better
from agl_judge.graders.showing import Shown, candidates


class Pair(NamedTuple):
    """Two answers to one prompt, and which is better: 1 or 2; 0: neither is."""

    prompt: str
    answers: tuple[str, str]
    better: int


def read_pairs(file: Path) -> list[Pair]:
    """Read pairs: a JSON object a line, with ``prompt``, ``a``, ``b`` and ``better`` (``a``, ``b``, ``tie``).
    Raise :class:`UsageError`, which names the line.
    """
    found = []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: it cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            better = {"a": 1, "b": 2, "tie": 0}[given["better"]]
            texts = [given["prompt"], given["a"], given["b"]]
        except (ValueError, LookupError, TypeError):
            raise UsageError(
                f'{file}, line {number}: give {{"prompt": …, "a": …, "b": …, "better": "a", "b" or "tie"}}'
            ) from None
        if not all(isinstance(text, str) for text in texts):
            raise UsageError(f"{file}, line {number}: prompt, a and b are texts")
        found.append(Pair(texts[0], (texts[1], texts[2]), better))
    if not found:
        raise UsageError(f"{file}: it has no pairs")
    return found


async def check(
    client: JudgeClient,
    judge: str,
    pairs: Sequence[Pair],
    counts: Mapping[str, float],
    *,
    repeats: int = 3,
    about: str = ABOUT,
    **more: Any,
) -> dict[str, Any]:
    """Return the judge's figures. ``counts``: what the client counts. ``repeats``: how often each question is
    asked; more than one asks at temperature 1, as a judge that is asked once more would answer. ``more``:
    further fields of the request.
    """
    sampling: dict[str, Any] = {**({"temperature": 1.0} if repeats > 1 else {}), **more}

    async def ask(pair: Pair, order: tuple[int, int], repeat: int) -> float | None:
        shown = Shown(f"user: {pair.prompt}", tuple(f"assistant: {pair.answers[i]}" for i in order), (0, 1))
        messages = [
            {"role": "system", "content": PAIRING.format(about=about)},
            {"role": "user", "content": candidates(shown)},
        ]
        return (await client.ask(judge, messages, read_better, repeat=repeat, **sampling)).value

    async def asked(pair: Pair) -> list[tuple[float | None, float | None]]:
        both = [(ask(pair, (0, 1), n), ask(pair, (1, 0), n)) for n in range(repeats)]
        found = await asyncio.gather(*(one for two in both for one in two))
        return [(found[2 * n], found[2 * n + 1]) for n in range(repeats)]

    answers = await asyncio.gather(*map(asked, pairs))
    return figures(pairs, answers, counts)


def figures(
    pairs: Sequence[Pair],
    answers: Sequence[Sequence[tuple[float | None, float | None]]],
    counts: Mapping[str, float],
) -> dict[str, Any]:
    """Return the figures of answers. ``answers``: of each pair and repeat, what was said in the order of the
    file and in the other: 1 if the first that was shown is better, 0 if the second is, a half for neither.
    """
    agreed, units, firsts, contradicted, varied, unusable = [], [], [], [], [], 0
    for number, (pair, said) in enumerate(zip(pairs, answers, strict=True)):
        wanted = {1: 1.0, 2: 0.0, 0: 0.5}[pair.better]
        for first, second in said:
            for value, right in ((first, wanted), (second, 1.0 - wanted)):
                if value is None:
                    unusable += 1
                else:
                    firsts.append(value)
                    agreed.append(float(value == right))
                    units.append(number)
            if first is not None and second is not None:
                contradicted.append(float(first + second != 1.0))
        for place in (0, 1):
            same = Counter(one[place] for one in said if one[place] is not None)
            if same.total() > 1:
                varied.append(1.0 - same.most_common(1)[0][1] / same.total())
    interval = mean_interval(agreed, units) if agreed else None
    return {
        "pairs": len(pairs),
        "answers": len(agreed),
        "unusable": unusable,
        "agreement": _mean(agreed),
        "ci": list(interval.ends) if interval is not None and interval.ends else None,
        "interval": interval.kind if interval is not None else None,
        "position_bias": None if not firsts else round(sum(firsts) / len(firsts) - 0.5, 6),
        "contradicted": _mean(contradicted),
        "varied": _mean(varied),
        "calls": int(counts.get("judge_calls", 0)),
        "tokens": int(counts.get("judge_tokens", 0)),
    }


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 6) if values else None
