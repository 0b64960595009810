"""What a model writes for word problems: how many answers are expressions, and how many hold the right one.

    python bench/record.py word_problems_answers -- python bench/word_problems_answers.py RUN

``RUN`` is the folder of an evaluation with the agents of ``examples/word_problems``, such as ``make
svamp-real`` leaves them in ``runs/``. The last line is one JSON object: ``answers``; ``expressions``, which
are one expression and nothing else; ``right`` of them; and ``right_inside``, answers in which the right
expression stands somewhere, other words beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from pathlib import Path

from agl_audit.run import open_run

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

from word_problems.grading import grade, value_of

PART = re.compile(r"[\d.(][\d.+\-*/() ]*")
"""What may be an expression in a text."""


async def count(run: str) -> dict[str, int]:
    """Count the answers of all rollouts of a run."""
    async with open_run(run) as opened:
        rollouts = await opened.store.query_rollouts(run_id=opened.run_id, limit=100_000)
        records = await opened.store.records([rollout.rollout_id for rollout in rollouts])
    found = {"answers": 0, "expressions": 0, "right": 0, "right_inside": 0}
    for record in records:
        gold = record.rollout.input["expression"]
        for call in record.calls:
            text = (call.response or {}).get("content") or ""
            found["answers"] += 1
            found["expressions"] += value_of(text) is not None
            found["right"] += grade(text, gold) == 1.0
            found["right_inside"] += any(grade(part.strip(), gold) == 1.0 for part in PART.findall(text))
    return found


def main() -> None:
    """Count, print."""
    parser = argparse.ArgumentParser(description="What a model writes for word problems.")
    parser.add_argument("run", help="the folder of an evaluation")
    print(json.dumps(asyncio.run(count(parser.parse_args().run))))


if __name__ == "__main__":
    main()
