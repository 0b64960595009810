"""SVAMP in three splits, and one-step problems of GSM8K, as tasks.

SVAMP varies about a hundred stories: other numbers, another order, another question. Problems whose texts
(without question and numbers) share half of their words are one story here, and no story is in two splits. So
a held-out problem tells a story that was never trained on.

Sources: Patel et al., arXiv:2103.07191 (SVAMP); Cobbe et al., arXiv:2110.14168 (GSM8K).
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

from agentlightning.types.base import read_json_lines
from calc_x.datasets import read
from calc_x.problems import Problem

Split = Literal["train", "val", "test"]


class WordProblem(Problem):
    """A problem and its story: problems of one story are not independent."""

    story: str


DATA = Path(__file__).resolve().parent / "data"
SIZES: dict[Split, int] = {"test": 300, "val": 100, "train": 449}
"""Problems of a split, at least; a split ends with a whole story."""
SAME_STORY = 0.5
"""Share of words (Jaccard) from which on two problems tell the same story."""
FAULTY = {"svamp-chal-680"}
"""Problems of SVAMP whose equation does not give their answer; they are in no split."""


def load(split: Split, seed: int = 0, limit: int | None = None) -> list[WordProblem]:
    """Return the problems of a split of SVAMP. ``seed`` chooses which stories are in which split."""
    if split not in SIZES:
        raise ValueError(f"unknown split {split!r} of SVAMP; there are {', '.join(SIZES)}")
    return splits(seed)[split][:limit]


def gsm8k_one_step(limit: int | None = None) -> list[WordProblem]:
    """Return the problems of GSM8K whose solution marks one calculation, each a story of its own. None is for
    training.
    """
    found = read(DATA / "gsm8k_one_step.jsonl", "gsm8k")[:limit]
    return [WordProblem({**problem, "story": problem["id"]}) for problem in found]


@cache
def splits(seed: int) -> dict[Split, list[WordProblem]]:
    """Return all splits of SVAMP: whole stories, shuffled by ``seed``."""
    stories = list(_stories())
    random.Random(f"word_problems:{seed}").shuffle(stories)
    found: dict[Split, list[WordProblem]] = {"test": [], "val": [], "train": []}
    for story in stories:
        split = next((s for s in ("test", "val") if len(found[s]) < SIZES[s]), "train")
        found[split] += [WordProblem({**problem, "story": story[0]["id"]}) for problem in story]
    for split, problems in found.items():
        random.Random(f"word_problems:{seed}:{split}").shuffle(problems)
    return found


@cache
def _stories() -> tuple[tuple[Problem, ...], ...]:
    """Return the problems of SVAMP, those of one story together."""
    problems, words = _read_svamp()
    story = list(range(len(problems)))  # a forest: each points to an earlier member of its story, or itself

    def root(i: int) -> int:
        while story[i] != i:
            story[i] = i = story[story[i]]
        return i

    for i, mine in enumerate(words):
        for j in range(i):
            if len(mine & words[j]) >= SAME_STORY * len(mine | words[j]):
                story[root(i)] = root(j)
    members: dict[int, list[Problem]] = {}
    for i, problem in enumerate(problems):
        members.setdefault(root(i), []).append(problem)
    return tuple(map(tuple, members.values()))


def _read_svamp() -> tuple[list[Problem], list[frozenset[str]]]:
    """Return the problems with a right equation, and the words of each one's text."""
    file = DATA / "svamp.jsonl"
    bodies = [row["Body"] for row in read_json_lines(file)]
    kept = [
        (Problem({**problem, "expression": bare(problem["expression"])}), _words(body))
        for problem, body in zip(read(file, "svamp"), bodies, strict=True)
        if problem["id"] not in FAULTY
    ]
    return [problem for problem, _ in kept], [words for _, words in kept]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+", text.lower()))


def bare(expression: str) -> str:
    """Return an expression without the brackets around the whole: ``((3+5)*2)`` becomes ``(3+5)*2``."""
    depth = 0
    for place, character in enumerate(expression):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            whole = place == len(expression) - 1 and expression.startswith("(")
            return bare(expression[1:-1]) if whole else expression
    return expression


def numbers_in(question: str) -> list[str]:
    """Return the numbers of a question, in order, without commas."""
    return [found.replace(",", "") for found in re.findall(r"\d[\d,]*(?:\.\d+)?", question)]


def operators_in(problems: Sequence[Problem]) -> list[str]:
    """Return every operator of the problems' expressions."""
    return [sign for problem in problems for sign in re.findall(r"[-+*/]", problem["expression"])]
