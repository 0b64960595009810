"""Grades the cases of the documented graders in ``graders/``; the last line that it prints is JSON.

A file has its ``source``, the ``grader``, and ``cases`` (``item``, ``sample``, ``score``; ``judge``: what the
scripted model answers; a score of ``null``: there is none) or ``refused``, of what its refusal speaks. Scores
follow from what the documentation says of the type; those of texts that differ in part are the libraries'.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
from pathlib import Path
from typing import Any

import agentlightning as agl
from agl_judge.client import BadVerdict
from agl_judge.openai_graders.grader import read_part, sample_of_text

FILES = sorted(Path(__file__).with_name("graders").glob("*.json"))


async def score(part: Any, case: dict[str, Any]) -> float | None:
    """Return the score of a case, with a scripted judge that does not mend its answer."""

    async def ask(messages: Any, read: Any, **sampling: Any) -> Any:
        assert not any("{{" in one["content"] for one in messages)
        try:
            return read(case["judge"])
        except BadVerdict:
            return None

    try:
        found = await part.score({"item": case["item"], "sample": sample_of_text(case["sample"])}, ask)
    except BadVerdict:
        return None
    return None if found is None else float(found)


def problems(file: Path) -> tuple[str, list[str]]:
    """Return ``ok`` or ``refused``, and what is not as documented."""
    given = json.loads(file.read_text(encoding="utf-8"))
    try:
        part = read_part(given["grader"], file.name, judge=True)
    except agl.UsageError as error:
        wanted = given.get("refused")
        if wanted is None and given["grader"]["type"] == "python":
            wanted = "code of somebody else"  # this machine makes no sandbox
        said = [] if wanted is not None and wanted in str(error) else [f"refused: {error}"]
        return "refused", said
    if "refused" in given:
        return "ok", [f"it is not refused, for {given['refused']}"]
    found = []
    for case in given["cases"]:
        value = asyncio.run(score(part, case))
        same = (
            value is None
            if case["score"] is None
            else value is not None and math.isclose(value, case["score"], abs_tol=1e-9)
        )
        if not same:
            found.append(f"{case['sample']!r}: {value}, documented {case['score']}")
    return "ok", found


def main() -> int:
    counts, wrong = {"ok": 0, "refused": 0}, 0
    for file in FILES:
        kind, said = problems(file)
        counts[kind] += not said
        wrong += bool(said)
        for one in said:
            print(f"{file.name}: {one}", file=sys.stderr)
    print(json.dumps({"files": len(FILES), **counts, "wrong": wrong}))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
