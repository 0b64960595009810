"""The tables of docs/contributing/credit.md are those of the recorded result, what is concluded from them
holds, and the benchmark's truth is the truth.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from agentlightning.recipes import GRPO, RLOO

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench" / "credit_truth"
SHAPES: dict[str, Any] = json.loads((ROOT / "bench/results/credit_truth.json").read_text())["result"][
    "shapes"
]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import table  # type: ignore[import-not-found]

    return table


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import shapes  # type: ignore[import-not-found]

    return shapes


def figure(
    key: str, rule: str, where: str, baseline: str = "group", scale: str = "std", only: str = ""
) -> float:
    """The mean over the shapes that have the case; ``only``: over those that also have that one."""
    case = f"{rule} · {baseline} · {scale} · {where}"
    found = [
        s["cases"][case][key] for s in SHAPES.values() if case in s["cases"] and (only or case) in s["cases"]
    ]
    return sum(found) / len(found)


def test_the_page_shows_the_recorded_result(table: ModuleType) -> None:
    found = table.PLACE.search(table.PAGE.read_text())
    assert found is not None and found[0] == f"{found[1]}{table.text(SHAPES)}\n{found[2]}"


@pytest.mark.parametrize("rule", ["per_call", "discounted", "discounted 0.9", "per_agent"])
def test_turns_are_the_default_where_they_carry_more_signal(rule: str) -> None:
    for scale, recipe in (("std", GRPO), ("none", RLOO)):
        baseline = recipe().baseline
        assert recipe(credit=rule.split()[0]).group_by == ["group", "turn"] and recipe().scale == scale
        assert figure("snr", rule, "turn", baseline, scale) > 1.1 * figure(
            "snr", rule, "group", baseline, scale
        )
        assert (
            figure("rank", rule, "turn", baseline, scale)
            > figure("rank", rule, "group", baseline, scale) - 0.02
        )


RULES = ["broadcast", "last", "per_call", "discounted", "discounted 0.9", "per_agent"]


@pytest.mark.parametrize("rule", RULES)
def test_scale_and_the_choice_of_group_or_rloo_matter_little(rule: str) -> None:
    where = "group" if rule in ("broadcast", "last") else "turn"
    for key in ("rank", "snr"):
        found = [figure(key, rule, where, b, s) for b in ("group", "rloo") for s in ("none", "std")]
        assert max(found) - min(found) <= 0.035
    if rule != "last":
        for worse in ("batch", "none"):
            assert figure("rank", rule, where, worse) < figure("rank", rule, where)


def test_rewards_of_calls_are_worth_more_than_any_baseline() -> None:
    for shape in (shape for shape in SHAPES.values() if "per_call · group · std · turn" in shape["cases"]):
        best = max(
            shape["cases"][f"{rule} · group · std · turn"]["snr"] for rule in ("per_call", "discounted")
        )
        broadcast = [case["snr"] for name, case in shape["cases"].items() if name.startswith("broadcast")]
        assert best > max(broadcast)
    process = "process · group · std · group"
    assert figure("snr", "process", "group") < figure("snr", "discounted", "turn", only=process)
    difference = figure("rank", "process", "group") - figure("rank", "discounted", "turn", only=process)
    assert abs(difference) < 0.02


def test_true_advantages_are_what_working_backwards_gives(shapes: ModuleType) -> None:
    for shape in shapes.SHAPES:
        value = shapes.values(shape)
        pulls: dict[Any, float] = {}
        for (agent, state, _), pull in shapes.gradient(shape, value).items():
            pulls[agent, state] = pulls.get((agent, state), 0.0) + pull
        assert max(map(abs, pulls.values())) < 1e-12  # under the policy, advantages average to nothing
        assert all(
            math.isclose(sum(one.probability for one in shape.outcomes(d, (0, 0), a)), 1.0)
            for d in shapes.DIFFICULTIES
            for a in range(3)
        )
    steps = shapes.SHAPES[0]
    chance = sum(p * s for p, s in zip(shapes.POLICY, shapes.SUCCESS, strict=True))
    assert shapes.values(steps)(1.0, (0, 0))["a"] == pytest.approx(0.5 * (0 + 1 + 2 + 3) + 4 * chance)
    played = [shapes.play(steps, 1.0, shapes.values(steps), Random(seed)) for seed in range(3)]
    expected = [shapes.SUCCESS[step.action] - chance for one in played for step in one]
    assert [step.advantage for one in played for step in one] == pytest.approx(expected)
