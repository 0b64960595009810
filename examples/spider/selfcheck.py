"""Does the reward accept what is right and refuse what is wrong? ``python -m spider.selfcheck [FILES or
FOLDERS ...]``.

For every question the gold query must earn 1.0; no answer, a statement that writes, the gold query with a
second statement behind it, and the gold query with one column more must earn 0.0. Without files the bundled
and the generated questions are checked. The last line of the output is the sum; the exit status is 1 if
anything failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from spider.databases import databases_of
from spider.datasets import load
from spider.questions import Question
from spider.sql.matching import GoldError, match


@dataclass
class Count:
    """What the check of one set found."""

    questions: int = 0
    failures: list[str] = field(default_factory=list)


def check(questions: Iterable[Question]) -> Count:
    """Grade the gold query and four wrong ones of each question; equal gold queries are graded once."""
    count = Count()
    seen: dict[tuple[str, str, str], list[float] | str] = {}
    for question in questions:
        count.questions += 1
        key = (question["folder"], question["db_id"], question["query"])
        if key not in seen:
            seen[key] = _graded(question)
        if seen[key] != [1.0, 0.0, 0.0, 0.0, 0.0]:
            count.failures.append(f"{question['id']}: {question['query']!r} grades {seen[key]}")
    return count


def _graded(question: Question) -> list[float] | str:
    gold = question["query"].rstrip("; \n")
    tries = (gold, "", "DELETE FROM sqlite_master", f"{gold}; DROP TABLE t", f"SELECT *, 1 FROM ({gold})")
    try:
        return [match(question["query"], query, databases_of(question)).reward for query in tries]
    except GoldError as error:
        return str(error)


def main(arguments: list[str] | None = None) -> int:
    """Check each file (or the bundled sets), print one line each and a sum."""
    files = sys.argv[1:] if arguments is None else arguments
    names = [f"spider:{name}" for name in files] or ["generated:train", "generated:heldout", "dev"]
    total = failed = 0
    for name in names:
        count = check(load(name))
        total, failed = total + count.questions, failed + len(count.failures)
        print(f"{name}: {count.questions} questions, {len(count.failures)} failed")
        for failure in count.failures[:20]:
            print(f"  {failure}")
    print(f"gold self-check: {total} questions, {failed} failed")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main())
