"""Every metric that code reports has a meaning in the reference, and every meaning a metric."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import metrics  # noqa: E402


def test_every_metric_has_a_meaning_and_every_meaning_a_metric() -> None:
    assert metrics.undocumented() == []
    assert {"reward_mean", "failed/*", "budget/calls", "lr", "value_loss"} <= set(metrics.reported())


def test_the_page_has_them_all() -> None:
    page = metrics.page()
    assert "| `left_out/<reason>` | calls that are not trained" in page and "## An evaluation" in page


def test_alerts_ask_for_metrics_that_servers_have() -> None:
    page = (ROOT / "docs" / "operate.md").read_text()
    asked = set(re.findall(r"agl_(?:store|gateway|train|engine)_\w+", page))
    assert len(asked) > 6 and asked <= {one.sample for table in metrics.servers().values() for one in table}
    named = set(re.findall(r"name `(\w+)`", page))
    assert len(named) > 2 and named <= {name for section in metrics.sections().values() for name in section}


def test_what_is_missing_or_gone_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        """METRICS = ("quorum/late",)

def figures(self) -> dict[str, float]:
    out = {"colour": 1.0, **{f"shape_{name}": 1.0 for name in "ab"}, "lr": 1.0}
    out["size"] = 2.0
    return out | _counts_under("odd", {})

def other() -> dict[str, str]:
    return {"word": "a"}
"""
    )
    monkeypatch.setattr(metrics, "ROOT", tmp_path)
    monkeypatch.setattr(metrics, "ROOMS", ("code.py",))
    monkeypatch.setattr(
        metrics, "sections", lambda: {"A": {"lr": "rate", "loss": "objective", "shape_<x>": "x"}}
    )
    found = {"metric colour", "metric size", "metric odd/*", "metric quorum/late"}
    assert set(metrics.undocumented()) == found | {"metric loss, which nothing reports"}
