"""The drill's own accounts: what it would say if a step counted a broken rollout, lost one, or trained it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from drills import verl_store
from drills.unruly import SHARE, WAYS, way_of
from drills.verl_store import RUN, VerlScene, broken, wrongs

from agentlightning.types import RolloutFingerprint, StepReport

WAY = {"a": None, "b": "hangs", "c": "raises", "d": "makes no call", "e": None}
GOOD: dict[str, Any] = {
    "lost": 0, "doubled": 0, "unverified": 0, "broken_trained": 0, "failed_otherwise": 0,
    "rewards_with_zeros": 0, "acknowledged": 9, "broken": 3, "trained_rollouts": 2,
    "failures": {"agent-raised": 1, "no-call": 1, "timeout": 1}, "store_kills": {"rollouts": 1, "update": 1},
}  # fmt: skip


def fingerprints(**changed: dict[str, Any]) -> list[RolloutFingerprint]:
    told: dict[str, dict[str, Any]] = {
        "a": {"reward": 1.0, "rows": 1, "failure": ""},
        "b": {"failure": "straggler"},
        "c": {"failure": "agent-raised"},
        "d": {"failure": "no-call", "reward": 1.0},
        "e": {"reward": 0.0, "rows": 1, "failure": ""},
    }
    return [
        RolloutFingerprint(run_id=RUN, step=0, rollout_id=name, **{**one, **changed.get(name, {})})
        for name, one in told.items()
    ]


def report(mean: float = 0.5, count: float = 2.0) -> StepReport:
    metrics = {"reward_mean": mean, "reward_count": count}
    return StepReport(run_id=RUN, step=0, policy="policy", policy_version=1, metrics=metrics)


@pytest.mark.parametrize(("given", "changed", "wrong"), [
    (report(), {}, {}),
    (report(mean=0.2, count=5.0), {}, {"rewards_with_zeros": 2}),  # all five, three of them as zeros
    (report(), {"c": {"rows": 1}}, {"broken_trained": 1}),
    (report(), {"b": {"failure": "unresponsive"}}, {"failed_otherwise": 1}),
])  # fmt: skip
def test_what_is_wrong_with_broken_rollouts_is_counted(
    given: StepReport, changed: dict[str, Any], wrong: dict[str, int]
) -> None:
    told = broken([given], fingerprints(**changed), WAY)
    assert told["broken"] == 3
    names = ("broken_trained", "failed_otherwise", "rewards_with_zeros")
    assert {name: told[name] for name in names if told[name]} == wrong


@pytest.mark.parametrize(("changed", "what"), [
    ({"lost": 2}, "lost: 2"), ({"broken": 0}, "no broken"), ({"failures": {"no-call": 1}}, "agent-raised"),
    ({"store_kills": {"rollouts": 1}}, "of 2 kills"), ({"rewards_with_zeros": 1}, "rewards_with_zeros: 1"),
])  # fmt: skip
def test_a_drill_that_has_shown_nothing_says_so(changed: dict[str, Any], what: str) -> None:
    assert wrongs(GOOD, 2) == []
    assert what in " ".join(wrongs({**GOOD, **changed}, 2))


def test_a_third_of_the_rollouts_break_in_every_way_and_always_the_same() -> None:
    ways = [way_of(seed) for seed in range(2000)]
    assert ways == [way_of(seed) for seed in range(2000)] and set(ways) == {None, *WAYS}
    assert sum(way is not None for way in ways) / 2000 == pytest.approx(SHARE, abs=0.05)


def test_the_phase_is_read_from_the_stores_file_and_the_commands_are_ours(tmp_path: Path) -> None:
    scene = VerlScene("verl", tmp_path, 8, 3, 1)
    scene.python = "/with/verl/python"
    with closing(sqlite3.connect(scene.place)) as file:
        file.execute("create table rollouts (run_id text, status text)")
        file.execute("insert into rollouts values (?, 'succeeded')", (RUN,))
        file.commit()
        assert scene.phase() == "update"
        file.execute("insert into rollouts values (?, 'running')", (RUN,))
        file.commit()
        assert scene.phase() == "rollouts"
    config = str(Path(verl_store.__file__).with_name("verl.yaml"))
    assert config in scene.command("runner") and config in scene.command("trainer")
    assert "backend.options.python=/with/verl/python" in scene.command("trainer")
    assert "--set" not in scene.command("store")


@pytest.mark.plugins
@pytest.mark.nightly
def test_steps_end_while_the_store_dies() -> None:
    command = [sys.executable, verl_store.__file__, "--kills", "2"]
    assert subprocess.run(command, stdout=subprocess.PIPE).returncode == 0
