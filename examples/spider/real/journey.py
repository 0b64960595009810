"""What a policy learned and what it lost: questions that one of two evaluations answers and the other not.

    python -m spider.real.journey AFTER BEFORE [--count 10] [--out FILE]

``AFTER`` and ``BEFORE`` are runs of `agl eval` on the same questions. Each question comes with what every
query returned, corrections included, and with what the gold query returns. ``agl compare BEFORE AFTER`` has
the rewards of all.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from router.databases import file_of
from spider.real.outcomes import Outcome, gain, outcomes
from spider.real.plain import plain
from spider.sql.execution import SqlError, run
from spider.sql.showing import show, show_error

ROWS, CHARS = 3, 200


def markdown(after: Sequence[Outcome], before: Sequence[Outcome], count: int) -> str:
    """Return the page: at most ``count`` questions that were learned and as many that were lost."""
    found = gain(after, before)
    pairs = {a.id: (b, a) for a, b in zip(after, before, strict=True)}
    lines = [
        "# What it learned, and what it lost",
        "",
        f"Of {len(after)} questions {len(found['learned'])} are answered after and not before, "
        f"{len(found['lost'])} before and not after.",
        "",
    ]
    for title, ids in (("Learned", found["learned"]), ("Lost", found["lost"])):
        lines += [f"## {title}: {min(count, len(ids))} of {len(ids)}", ""]
        for one in ids[:count]:
            lines += story(*pairs[one])
    return "\n".join(lines)


def story(before: Outcome, after: Outcome) -> list[str]:
    """Return the lines about one question."""
    database = file_of(before.db_id)
    lines = [
        f"### {before.question}",
        "",
        f"Database `{before.db_id}`. The gold query, in its plain form:",
        "",
    ]
    lines += _query(plain(before.gold, database), database)
    for when, one in (("Before", before), ("After", after)):
        lines += [f"**{when}**, tables: {one.tables}", ""]
        for turn, query in enumerate(one.queries):
            lines += [] if turn == 0 else ["Corrected:", ""]
            lines += _query(query, database)
    return lines


def _query(query: str, database: Path) -> list[str]:
    """A query and what it returns."""
    try:
        result = show(run(database, query), CHARS, ROWS)
    except SqlError as error:
        result = show_error(error, CHARS)
    return ["~~~~sql", query, "~~~~", "", "~~~~", result, "~~~~", ""]


def main() -> None:
    """Read both runs, write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m spider.real.journey", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("after")
    parser.add_argument("before")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    given = parser.parse_args()
    after, before = (asyncio.run(outcomes(place)) for place in (given.after, given.before))
    given.out.write_text(markdown(after, before, given.count), encoding="utf-8")
    print(given.out)


if __name__ == "__main__":
    main()
