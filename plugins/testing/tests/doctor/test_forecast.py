"""Scaling a probe to a run, and what the machine can carry."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from agl_testing.doctor.figures import format_bytes, format_counts, format_seconds
from agl_testing.doctor.forecast import Forecast, ProbeMeasurements, Workload, judge_forecast, predict
from agl_testing.doctor.memory import MemoryUsage, measure
from agl_testing.doctor.report import Check

from agentlightning.terminal import plural

SEEN = ProbeMeasurements(rollouts=32, seconds=8.0, tokens=3200, bytes=64_000, start=2.0, update=1.0, sync=0.5)
PLAN = Workload(steps=40, rollouts=64, held_out=100, evaluate_every=10, scripted=128)


def test_a_run_is_the_sum_of_its_parts() -> None:
    found = predict(PLAN, SEEN, policy_bytes=1000, checkpoints=2)
    assert (
        PLAN.evaluations == (4 + 3) * 100
    )  # before and after, greedy and sampled; after steps 10, 20 and 30
    assert Workload(steps=40, rollouts=64, held_out=100, evaluate_sampled=False).evaluations == 200
    assert (found.rollout_seconds, found.update_seconds, found.step_seconds) == (16.0, 2.5, 18.5)
    assert found.evaluation_seconds == 828 / 4
    assert found.total_seconds == 2.0 + 40 * 18.5 + 828 / 4
    assert found.rollouts == 40 * 64 + 828 and found.tokens == 6400
    assert found.store_bytes_per_step == 128_000 and found.store_bytes == 2000 * found.rollouts
    assert found.disk_bytes == found.store_bytes + 1000 * 7


def test_what_was_not_measured_is_assumed_and_said() -> None:
    seen = ProbeMeasurements(rollouts=32, seconds=8.0, tokens=3200, bytes=64_000)
    found = predict(Workload(steps=1, rollouts=32, held_out=0), seen)
    assert found.update_seconds == found.rollout_seconds == 8.0 and found.total_seconds == 16.0
    assert any("no update was measured" in line for line in found.assumptions)


def judge(forecast: Forecast | None = None, **changes: Any) -> Check:
    known: dict[str, Any] = {
        "steps": 40,
        "usage": [MemoryUsage("a", 100, 50), MemoryUsage("b", 110, 60), MemoryUsage("c", 130, 60)],
        "free_disk": 10**12,
        "free_memory": 10**12,
        "gap": 1e-6,
    }
    return judge_forecast(forecast or predict(PLAN, SEEN), **{**known, **changes})


def test_what_overlaps_and_what_may_be_refilled_is_said() -> None:
    plan = Workload(steps=2, rollouts=8, held_out=0, async_steps=1, dynamic_sampling=2)
    found = predict(plan, ProbeMeasurements(rollouts=4, seconds=2.0, tokens=1.0, bytes=1, update=3.0))
    assert found.step_seconds == 10.0  # an upper bound
    assert any("a step takes 6.0 s at best" in line for line in found.assumptions)
    assert any("rolls out up to 3 times as much" in line for line in found.assumptions)


def test_room_enough_is_well_with_its_assumptions() -> None:
    check = judge()
    assert check.status == "ok" and check.title == "16 min for 40 steps and the evaluations"
    assert "memory: trainer 130 B, engine and other children 60 B (+20 B since b)" in check.detail
    assert sum(line.startswith("assumed: ") for line in check.detail) == 2


@pytest.mark.parametrize(
    ("changes", "status", "title"),
    [
        ({"free_disk": 10}, "fail", "the run needs 6.8 MB of disk, 10 B are free"),
        ({"free_memory": 3}, "warn", "only 3 B of memory free beside 190 B in use"),
        ({"gap": 0.01}, "warn", "engine and trainer disagree on logprobs by up to 1.0e-02"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], status: str, title: str) -> None:
    check = judge(**changes)
    assert check.status == status and check.title == title and check.advice


def test_memory_that_was_not_measured_is_said() -> None:
    assert "memory in use: not measured" in judge(usage=[]).detail


def test_memory_of_this_process_and_its_children() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert child.stdout is not None and child.stdout.readline()
        usage = measure("now")
        assert usage.trainer > 10**7 and usage.children > 10**6
    finally:
        child.communicate(b"\n")


def test_numbers_for_people() -> None:
    assert [format_bytes(n) for n in (0, 999, 1500, 2.5e9, 3e12)] == [
        "0 B",
        "999 B",
        "1.5 kB",
        "2.5 GB",
        "3.0 TB",
    ]
    assert [format_seconds(s) for s in (0.0123, 8.0, 73, 700, 9000, 300_000)] == [
        "0.012 s", "8 s", "73 s", "12 min", "2.5 h", "3.5 days",
    ]  # fmt: skip
    assert format_counts({"a": 1, "b": 3}) == "3 × b, 1 × a" and plural(1, "call") == "1 call"
