"""What is kept of ``make test-former``: every program, each unchanged and each call exact."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULT: dict[str, Any] = json.loads((ROOT / "bench/results/former.json").read_text(encoding="utf-8"))[
    "result"
]


def programs() -> set[str]:
    """The keys of ``PROGRAMS`` in the script, which imports what only its environment has."""
    tree = ast.parse((ROOT / "bench/former/run.py").read_text(encoding="utf-8"))
    (table,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "PROGRAMS"
    ]
    assert isinstance(table, ast.Dict)
    return {ast.literal_eval(key) for key in table.keys if key is not None}


def test_every_program_ran_unchanged_and_each_call_is_exact() -> None:
    assert set(RESULT["of"]) == programs()
    assert RESULT["programs"] == RESULT["unchanged"] == len(RESULT["of"])
    assert RESULT["calls"] == RESULT["calls_exact"] > 0
    for one in RESULT["of"].values():
        assert one["unchanged"] and one["calls"] == one["calls_exact"] > 0 and not one["problems"], one


def test_rollouts_were_rewarded() -> None:
    """But for the one program that is no agent."""
    rewarded = {name: one["rewarded"] == one["rollouts"] > 0 for name, one in RESULT["of"].items()}
    assert [name for name, all_of in rewarded.items() if not all_of] == [
        "calc_x/tests/test_mcp_calculator.py"
    ]
