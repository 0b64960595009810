"""The figures of all programs from those of each, and what is kept of them in ``bench/results``."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from record import machine

KEPT = ("framework", "version", "origin", "requests", "exact", "named", "refused", "why")
"""What is told of each program."""


def totals(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The object of the last line."""
    reasons: Counter[str] = Counter()
    for one in found.values():
        reasons.update(one["refused"])
    return {
        "programs": len(found),
        **{key: sum(one[key] for one in found.values()) for key in ("requests", "exact", "named")},
        "refused": sum(reasons.values()),
        "reasons": dict(reasons.most_common()),
        "not_sound": [name for name, one in found.items() if not one.get("sound", True)],
        "of": {name: {key: one[key] for key in KEPT if key in one} for name, one in found.items()},
    }


def kept(found: Mapping[str, Mapping[str, Any]], record: Path, names: Sequence[str]) -> dict[str, Any]:
    """The figures beside those that ``record`` has of programs that were not run. One that did not do as the
    manifest says is left out: ``tests/docs`` then misses it.
    """
    before = json.loads(record.read_text(encoding="utf-8"))["result"]["of"] if record.exists() else {}
    every = {name: one for name, one in {**before, **found}.items() if one.get("sound", True)}
    return {
        "command": "python bench/programs/run.py --write",
        "machine": machine(),
        "ran": len(found),
        "result": totals({name: every[name] for name in names if name in every}),
    }
