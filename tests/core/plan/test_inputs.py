"""Bad sizes and assumptions are refused with what to give."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.plan.inputs import Assumptions, PlannedRun, assume, count
from agentlightning.plan.shape import MODELS
from agentlightning.types.base import ConfigError


@pytest.mark.parametrize(
    ("text", "number"),
    [("16k", 16_000), ("16384", 16_384), ("1.5K", 1_500), ("2m", 2_000_000), ("1,024", 1_024)],
)
def test_numbers_may_be_short(text: str, number: int) -> None:
    assert count(text, "--tokens") == number


@pytest.mark.parametrize("text", ["", "k", "many", "0", "-1", "1.5", "1e400"])
def test_other_words_are_no_numbers(text: str) -> None:
    with pytest.raises(ConfigError, match="--tokens"):
        count(text, "--tokens")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gpus": 0}, "--gpus 0: at least 1"),
        ({"concurrency": 0}, "--concurrency 0: at least 1"),
        ({"tokens": 39}, "--tokens 39: a conversation of 20 calls has at least 40"),
        ({"rollouts": 2047}, "--rollouts 2047 is no multiple of --group 8"),
        ({"engine_gpus": 3}, "--engine-gpus 3 does not divide --gpus 64"),
    ],
)
def test_a_run_that_cannot_be_is_refused(changes: dict[str, Any], problem: str) -> None:
    sizes: dict[str, Any] = {"gpus": 64, "turns": 20, "tokens": 16_000}
    with pytest.raises(ConfigError, match=problem):
        PlannedRun(model="7b", shape=MODELS["Qwen2.5-7B"], **sizes | changes)


def test_assumptions_are_edited_by_name() -> None:
    assert assume([]) == Assumptions()
    assert assume(["peak=3", "tool_seconds=0"]) == Assumptions(peak=3, tool_seconds=0)


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        ("speed=3", "no assumption 'speed'; there are answered"),
        ("peak", "give peak=NUMBER"),
        ("peak=fast", "give peak=NUMBER"),
        ("peak=0.5", "peak=0.5: at least 1"),
        ("answered=1.5", "answered=1.5: more than 0, at most 1"),
        ("gpu_tflops=0", "gpu_tflops=0: more than 0"),
        ("tool_seconds=-1", "tool_seconds=-1: 0 is needed"),
        ("peak=nan", "peak=nan"),
        ("disk_gb=inf", "disk_gb=inf"),
    ],
)
def test_an_assumption_that_cannot_be_is_refused(pair: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        assume([pair])
