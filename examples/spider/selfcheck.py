"""Does the reward accept what is right and refuse what is wrong? ``python -m spider.selfcheck [FILES or
FOLDERS ...]``.

For every question the gold query must earn 1.0, as it stands and in other words (``variants``). No answer, a
statement that writes, a second statement, and every mutant of the gold query (``mutants``) must earn 0.0.
Without files the bundled and the generated questions are checked. The last line of the output is the sum; the
exit status is 1 if anything failed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from spider.databases import databases_of
from spider.datasets import load
from spider.questions import Question
from spider.sql.execution import SqlError, run
from spider.sql.matching import GoldError, match, plain
from spider.sql.schema import quoted
from spider.sql.tokens import orders, trimmed


@dataclass
class Count:
    """What the check of one set found."""

    questions: int = 0
    failures: list[str] = field(default_factory=list)
    mutants: int = 0
    """Wrong queries that were planted."""


def check(questions: Iterable[Question]) -> Count:
    """Grade the gold query, its variants and its mutants for each question; equal gold queries once."""
    count = Count()
    seen: dict[tuple[str, str, str], list[str]] = {}
    for question in questions:
        count.questions += 1
        key = (question["folder"], question["db_id"], question["query"])
        if key not in seen:
            seen[key] = _wrongly_graded(question, count)
        count.failures += [f"{question['id']}: {message}" for message in seen[key]]
    return count


def _wrongly_graded(question: Question, count: Count) -> list[str]:
    """What is wrong about the grades of a question; none where all is right."""
    gold, databases = question["query"], databases_of(question)
    found = []
    try:
        for name, query in variants(gold).items():
            if verdict := match(gold, query, databases).reason:
                found.append(f"the variant {name!r} was refused ({verdict}): {query!r}")
        for name, query in mutants(gold, databases).items():
            count.mutants += 1
            if match(gold, query, databases).match:
                found.append(f"the mutant {name!r} was accepted: {query!r}")
    except (GoldError, SqlError) as error:
        return [f"{error}"]
    return found


def variants(gold: str) -> dict[str, str]:
    """Queries that answer as the gold query does, by name."""
    bare = trimmed(gold)
    found = {
        "gold": gold,
        "semicolons": f"{bare};;",
        "comment": f"{bare} -- that is it",
        "blanks": f"\n {bare} ; ",
    }
    if not orders(gold):
        found["sub-query"] = f"SELECT * FROM ({bare})"
    return found


def mutants(gold: str, databases: Sequence[Path]) -> dict[str, str]:
    """Queries that answer otherwise, by name: off by one, with the wrong sign or unit, without a DISTINCT
    that is needed or with one that is too many. Only those whose result is another one.
    """
    bare = trimmed(gold)
    always = {
        "nothing": "",
        "a write": "DELETE FROM sqlite_master",
        "one column more": f"SELECT *, 1 FROM ({bare})",
    }
    always |= {"a second statement": f"{bare}; DROP TABLE t"}
    names = run(databases[0], plain(gold)).columns
    shown = ", ".join(quoted(f"c{place}") for place in range(len(names)))
    inner = f"WITH g({shown}) AS ({plain(gold)}) SELECT"
    first, *others = (quoted(f"c{place}") for place in range(len(names)))
    rest = "".join(f", {other}" for other in others)
    changed = {
        "off by one, more": f"{inner} {first} + 1{rest} FROM g",
        "off by one, less": f"{inner} {first} - 1{rest} FROM g",
        "sign": f"{inner} -{first}{rest} FROM g",
        "unit": f"{inner} {first} * 100{rest} FROM g",
        "one row less": f"{inner} * FROM g LIMIT max(0, (SELECT count(*) FROM g) - 1)",
        "every row twice": f"{inner} * FROM g UNION ALL SELECT * FROM g",
    }
    swaps = {"DISTINCT left out": (r"\bdistinct\b", " "), "one row more": (r"\blimit 1$", "LIMIT 2")}
    swaps["DISTINCT too many"] = (r"^select\b(?!\s+distinct)", "SELECT DISTINCT")
    for name, (pattern, text) in swaps.items():
        changed[name] = re.sub(f"(?i){pattern}", text, bare)
    return always | {name: query for name, query in changed.items() if _differs(bare, query, databases)}


def _differs(gold: str, query: str, databases: Sequence[Path]) -> bool:
    """Whether a query has rows that cannot be those of the gold query, in whatever order rows and columns
    come. Where LIMIT chooses rows, any that the gold query has without it might be right.
    """
    for database in databases:
        wide = _bag(database, re.sub(r"(?i)\blimit\s+\d+$", "", gold))
        found = _bag(database, query)
        if found.total() != _bag(database, gold).total() or not found <= wide:
            return True
    return False


@lru_cache(maxsize=64)
def _bag(database: Path, sql: str) -> Counter[tuple[str, ...]]:
    """The rows of a query, the values of each sorted; numbers as floats, so that 1 is 1.0."""
    rows = run(database, plain(sql)).rows
    return Counter(
        tuple(sorted(repr(float(value) if isinstance(value, int) else value) for value in row))
        for row in rows
    )


def main(arguments: list[str] | None = None) -> int:
    """Check each file (or the bundled sets), print one line each and a sum."""
    files = sys.argv[1:] if arguments is None else arguments
    names = [f"spider:{name}" for name in files] or ["generated:train", "generated:heldout", "dev"]
    total = failed = 0
    for name in names:
        count = check(load(name))
        total, failed = total + count.questions, failed + len(count.failures)
        print(f"{name}: {count.questions} questions, {count.mutants} mutants, {len(count.failures)} failed")
        for failure in count.failures[:20]:
            print(f"  {failure}")
    print(f"gold self-check: {total} questions, {failed} failed")
    return 1 if failed or not total else 0


if __name__ == "__main__":
    sys.exit(main())
