"""The tables of docs/contributing/credit.md, from the recorded result.

python bench/credit_truth/table.py          rewrite them
python bench/credit_truth/table.py --check  exit 1 if they would change
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from generated import ROOT, part, rewrite

PAGE = ROOT / "docs" / "contributing" / "credit.md"
RESULT = ROOT / "bench" / "results" / "credit_truth.json"
PLACE = part("credit truth", "bench/credit_truth/table.py")
RULES = ("broadcast", "last", "per_call", "discounted", "discounted 0.9", "per_agent")
CHOSEN = {"broadcast": "group", "last": "group", "per_agent": "turn"}
"""The location that the built-in recipes take for a rule; for the others ``turn``."""

Cases = Mapping[str, Mapping[str, float]]


def text(shapes: Mapping[str, Any]) -> str:
    """Both tables."""
    lines = ["| rule | group_by | baseline | shapes | scale none: rank · snr | scale std: rank · snr |"]
    lines += ["|---|---|---|---|---|---|", *_by_case(shapes), ""]
    names = list(shapes)
    lines += [f"| rule | {' | '.join(names)} |", f"|---|{'---|' * len(names)}", *_by_shape(shapes)]
    listed = [f"*{name}*: {shape['about']}" for name, shape in shapes.items()]
    return "\n".join([*lines, "", f"{'; '.join(listed)}."])


def mean(shapes: Mapping[str, Any], case: str, key: str) -> float | None:
    """The mean over the shapes that have the case, or ``None`` if none has."""
    found = [shape["cases"][case][key] for shape in shapes.values() if case in shape["cases"]]
    return sum(found) / len(found) if found else None


def _by_case(shapes: Mapping[str, Any]) -> Sequence[str]:
    """A line for each rule × location × baseline."""
    lines = []
    for rule in RULES:
        for place in ("group", "agent", "turn"):
            for baseline in ("group", "rloo", "batch", "none"):
                cells = [
                    _mean(shapes, f"{rule} · {baseline} · {scale} · {place}") for scale in ("none", "std")
                ]
                count = sum(f"{rule} · {baseline} · none · {place}" in s["cases"] for s in shapes.values())
                if count:
                    named = "group" if place == "group" else f"group, {place}"
                    lines.append(f"| {rule} | {named} | {baseline} | {count} | {cells[0]} | {cells[1]} |")
    process = _mean(shapes, "process · group · std · group")
    return [*lines, f"| GRPO's process supervision | – | – | 4 | – | {process} |"]


def _by_shape(shapes: Mapping[str, Any]) -> Sequence[str]:
    """A line for each rule as GRPO takes it, a column for each shape."""
    lines = []
    for rule in RULES:
        case = f"{rule} · group · std · {CHOSEN.get(rule, 'turn')}"
        cells = [_pair(shape["cases"].get(case)) for shape in shapes.values()]
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return lines


def _mean(shapes: Mapping[str, Any], case: str) -> str:
    found = {key: mean(shapes, case, key) for key in ("rank", "snr")}
    return _pair({key: value for key, value in found.items() if value is not None})


def _pair(found: Mapping[str, float] | None) -> str:
    return " · ".join(f"{round(found[key], 2) + 0.0:.2f}" for key in ("rank", "snr")) if found else "–"


def main() -> int:
    """Write, or check."""
    return rewrite(PAGE, PLACE, RESULT, lambda result: text(result["shapes"]))


if __name__ == "__main__":
    sys.exit(main())
