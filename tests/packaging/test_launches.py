"""What the local driver launches on a device only falls: ``bench/results/launches.json`` is the ceiling."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import pretend

ROOT = Path(__file__).parents[2]
KEPT = "bench/results/launches.json"


def figures(text: str) -> dict[str, Any]:
    """The counts of a result, without those of before."""
    found: dict[str, Any] = json.loads(text)["result"]
    return {name: value for name, value in found.items() if name != "before"}


def risen(now: dict[str, Any], ceiling: dict[str, Any]) -> list[str]:
    """What is larger than its ceiling; a graph takes the place of what is launched one by one."""
    inside = {"graphs", "graph_nodes"} if not ceiling["graphs"] else set()
    return [name for name, value in now.items() if name in ceiling.keys() - inside and value > ceiling[name]]


def test_the_committed_counts_do_not_rise() -> None:
    now, result = (
        (ROOT / KEPT).read_text(encoding="utf-8"),
        json.loads((ROOT / KEPT).read_text(encoding="utf-8"))["result"],
    )
    before = subprocess.run(["git", "show", f"HEAD:{KEPT}"], cwd=ROOT, capture_output=True, encoding="utf-8")
    assert not risen(figures(now), figures(before.stdout if before.returncode == 0 else now))
    assert not risen(figures(now), result["before"])
    assert risen({"graphs": 0, "decode_launches": 2}, {"graphs": 0, "decode_launches": 1}) == [
        "decode_launches"
    ]


def test_the_page_says_what_was_counted() -> None:
    now, page = figures((ROOT / KEPT).read_text(encoding="utf-8")), (ROOT / "docs/gpu.md").read_text("utf-8")
    text = " ".join(page.split())
    assert now["graphs"] == now["waits_per_token"] == now["waits_of_choices"] == 1
    for said in (
        f"takes {now['decode_launches']:.0f} launches, one of which replays a captured graph of "
        f"{now['graph_nodes']:.0f};",
        f"takes {now['update_launches_per_1k_tokens']} launches for 1,000 tokens, and "
        f"{now['update_launches_per_1k_tokens_padded']} where the shared prompt is computed for each row",
    ):
        assert said in text


@pytest.mark.slow
@pytest.mark.skipif(pretend.compiler() is None, reason="no g++ to compile the pretend device")
def test_the_counts_are_those_committed() -> None:
    command = [sys.executable, "-m", "bench.gpu.launches"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=True)
    assert not risen(json.loads(done.stdout.splitlines()[-1]), figures((ROOT / KEPT).read_text("utf-8")))
