"""Does the reward accept what is right and refuse what is wrong? ``python -m calc_x.selfcheck [FILES...]``.

For every problem the gold answer must grade 1.0, an empty answer and a planted wrong answer 0.0. Without
files the bundled samples and the generated problems are checked. The last line of the output is the sum; the
exit status is 1 if anything failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from calc_x.datasets import READERS, guess_format as format_of, load, read
from calc_x.expression import ExpressionError, evaluate, render
from calc_x.grading import grade
from calc_x.oracle import expression_for
from calc_x.problems import Problem


@dataclass
class Count:
    """What the check of one set found."""

    problems: int = 0
    failures: list[str] = field(default_factory=list)
    by_calculator: int = 0
    """Problems whose own expression already evaluates to the gold answer."""


def check(problems: Iterable[Problem]) -> Count:
    """Grade the gold, an empty and a wrong answer of each problem."""
    count = Count()
    for problem in problems:
        count.problems += 1
        gold = problem["result"]
        graded = [grade(f"### ANSWER: {text} ###", gold) for text in (gold, "", wrong_answer(gold))]
        graded += [grade("", gold), grade(None, gold)]
        if graded != [1.0, 0.0, 0.0, 0.0, 0.0]:
            count.failures.append(
                f"{problem['id']}: gold {gold!r} grades {graded} (gold, empty, wrong, '', None)"
            )
        count.by_calculator += (
            problem["expression"] != "" and expression_for(problem) == problem["expression"]
        )
    return count


def wrong_answer(gold: str) -> str:
    """An answer of the same sort that is wrong: the next letter, or a number far from the gold one."""
    if len(gold) == 1 and gold.isalpha():
        return "A" if gold.upper() == "E" else chr(ord(gold) + 1)
    try:
        value = evaluate(gold.partition(" = around ")[0])
    except ExpressionError:
        return f"not {gold}"
    return render(2 * value + 1) if value > 0 else "1"


def main(arguments: list[str] | None = None) -> int:
    """Check each file (or the bundled sets), print one line each and a sum."""
    files = sys.argv[1:] if arguments is None else arguments
    if files:
        sets = [(name, read(Path(name), format_of(Path(name)))) for name in files]
    else:
        sets = [(name, load(name)) for name in ("generated:train", "generated:heldout", *READERS)]
    total = failed = 0
    for name, problems in sets:
        count = check(problems)
        total, failed = total + count.problems, failed + len(count.failures)
        print(f"{name}: {count.problems} problems, {len(count.failures)} failed, ", end="")
        print(f"{count.by_calculator} with an expression that gives the gold answer")
        for failure in count.failures[:20]:
            print(f"  {failure}")
    print(f"gold self-check: {total} problems, {failed} failed")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main())
