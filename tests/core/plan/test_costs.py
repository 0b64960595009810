"""Costs at sizes between and beyond those that were measured, and files of costs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentlightning.plan.costs import Cost, CostSource, committed, read_costs
from agentlightning.types.base import ConfigError

SOURCE = CostSource("python bench/x.py", "a machine", "2026-01-01")
COST = Cost("a cost", "ms", [(100.0, 1.0), (200.0, 3.0), (400.0, 2.0)], [SOURCE])


@pytest.mark.parametrize(
    ("size", "cost"),
    [(1, 1.0), (100, 1.0), (150, 2.0), (200, 3.0), (300, 2.5), (400, 2.0), (1000, 4.0)],
)
def test_a_cost_lies_on_the_line_between_its_neighbours(size: float, cost: float) -> None:
    assert COST.at(size) == pytest.approx(cost)  # beyond: 1 + (2 − 1)·(1000 − 100)/300


def test_what_costs_nothing_at_no_size_shrinks_to_it() -> None:
    assert COST.growing(50) == 0.5 and COST.growing(150) == COST.at(150)


def test_sizes_beyond_the_largest_are_known() -> None:
    assert COST.beyond(401) and not COST.beyond(400)
    assert not Cost("one size", "s", [(1.0, 1.0)], [SOURCE]).beyond(9)


def test_the_committed_costs_have_a_source_each(tmp_path: Path) -> None:
    for cost in committed().all().values():
        assert cost.sources and all(source.machine and source.date for source in cost.sources)
    file = tmp_path / "costs.json"
    file.write_bytes(msgspec.json.encode(committed()))
    assert read_costs(file) == committed()


@pytest.mark.parametrize(
    ("name", "points", "problem"),
    [
        ("chunk_ms", [], "chunk_ms.points: at least one point"),
        ("step_mb", [[2.0, 1.0], [1.0, 1.0]], "step_mb.points.*ascending"),
        ("gateway_ms", [[1.0, 0.0]], "gateway_ms.points: a cost is more than 0"),
        ("stored_bytes", "many", "stored_bytes.points"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    name: str, points: object, problem: str, tmp_path: Path
) -> None:
    told = msgspec.to_builtins(committed())
    told[name]["points"] = points
    file = tmp_path / "costs.json"
    file.write_bytes(msgspec.json.encode(told))
    with pytest.raises(ConfigError, match=problem) as error:
        read_costs(file)
    assert str(file) in str(error.value)


def test_a_missing_file_says_how_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_costs(tmp_path / "none.json")
