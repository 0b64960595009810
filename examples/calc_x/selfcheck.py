"""Does the reward accept what is right and refuse what is wrong? ``python -m calc_x.selfcheck [FILES...]``.

Of every problem, the gold answer must grade 1.0, and so must the ways in which people write it.
No answer and every planted mutant of the gold answer must grade 0.0: off by one, the wrong sign, the wrong
unit or scale, two answers at once. Without files the bundled samples and the generated problems are checked.
The last line of the output is the sum; the exit status is 1 if anything failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from calc_x.datasets import READERS, guess_format as format_of, load, read
from calc_x.expression import ExpressionError, Number, evaluate, render
from calc_x.grading import asks_percent, grade
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
    """Grade the gold answer, its variants and its mutants for each problem."""
    count = Count()
    for problem in problems:
        count.problems += 1
        for message in wrongly_graded(problem):
            count.failures.append(f"{problem['id']}, gold {problem['result']!r}: {message}")
        count.by_calculator += (
            problem["expression"] != "" and expression_for(problem) == problem["expression"]
        )
    return count


def wrongly_graded(problem: Problem) -> list[str]:
    """What is wrong about the grades of a problem, one text each; none where all is right."""
    gold, asked = problem["result"], problem["question"]
    wrong = [text for text in (None, "") if grade(text, gold, asked)]
    found = [f"{text!r} was accepted as a message" for text in wrong]
    for name, message in variants(gold).items():
        if not grade(message, gold, asked):
            found.append(f"the variant {name} was refused: {message!r}")
    for name, answer in mutants(gold, asked).items():
        if grade(f"### ANSWER: {answer} ###", gold, asked):
            found.append(f"the mutant {name} was accepted: {answer!r}")
    return found


def variants(gold: str) -> dict[str, str]:
    """Messages that give the gold answer as people write it, by name."""
    written = {"gold": gold, "bold": f"**{gold}**", "boxed": f"\\boxed{{{gold}}}", "full stop": f"{gold}."}
    value = _value(gold)
    if value is not None and "%" not in gold:
        written |= {"equation": f"x = {gold}", "unit": f"{gold} apples", "currency": f"${gold}"}
    if value is not None and value == int(value):
        written |= {"separators": f"{int(value):,}", "point zero": f"{int(value)}.0"}
    messages = {name: f"### ANSWER: {text} ###" for name, text in written.items()}
    first = next(iter(mutants(gold).values()))
    return messages | {"corrected": f"### ANSWER: {first} ### No, sorry. ### ANSWER: {gold} ###"}


def mutants(gold: str, question: str = "") -> dict[str, str]:
    """Answers that are wrong in the ways models and rules are, by name; none of them equals the gold."""
    if len(gold) == 1 and gold.isalpha():
        others = [letter for letter in "ABCDE" if letter != gold.upper()]
        return {f"letter {letter}": letter for letter in others} | {"two letters": f"{gold} or {others[0]}"}
    value = _value(gold)
    if value is None:
        return {"another text": f"not {gold}"}
    more, less = render(value + 1), render(value - 1)
    if isinstance(value, Fraction) and value.denominator != 1:  # render would cut its digits
        more, less = f"{gold.partition(' = ')[0]} + 1", f"{gold.partition(' = ')[0]} - 1"
    wrong = {"off by one, more": more, "off by one, less": less, "two answers": f"{gold} or {more}"}
    wrong |= {"two answers, turned": f"{more} or {gold}", "not": f"not {gold}", "nothing but words": "apples"}
    if value != 0:
        wrong |= {
            "sign": render(-value),
            "unit, cents": render(value * 100),
            "unit, tenth": render(value / 10),
        }
        scale = next(word for word in ("million", "thousand", "dozen") if word not in question)
        wrong |= {"scale": f"{gold} {scale}", "double": render(2 * value)}
        if "%" in gold:  # 72 and 0.72 both say 72%
            del wrong["unit, cents"]
        elif not asks_percent(question):
            wrong["unit, percent"] = f"{gold}%"
    return wrong


def _value(gold: str) -> Number | None:
    try:
        return evaluate(gold.partition(" = around ")[0])
    except ExpressionError:
        return None


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
