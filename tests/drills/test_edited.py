"""The tamper drill's own pieces."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from drills.edited import edit, newest

from agentlightning import semconv
from agentlightning.store import SQLiteStore
from agentlightning.types import Seal, Span, StepReport


def test_the_newest_finished_run_is_taken(tmp_path: Path):
    with pytest.raises(SystemExit, match="run `make demo` first"):
        newest(tmp_path)
    for age, name in enumerate(("old", "new", "unfinished")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "store.sqlite").touch()
        if name != "unfinished":
            (folder / "summary.json").touch()
            os.utime(folder / "summary.json", (age, age))
    assert newest(tmp_path).name == "new"


async def test_one_reward_of_a_sealed_rollout_is_turned_into_its_opposite(tmp_path: Path):
    store = SQLiteStore(tmp_path / "store.sqlite")
    for rollout_id in ("ro-sealed", "ro-evaluated"):
        await store.enqueue_rollout("task", rollout_id=rollout_id)
        lease = await store.start_attempt(rollout_id)
        ids = {"rollout_id": rollout_id, "attempt_id": lease.attempt.attempt_id}
        await store.add_span(Span(name=semconv.REWARD_SPAN, attributes={semconv.REWARD_VALUE: 1.0}, **ids))
    seal = Seal(run_id="r", step=0, rollout_id="ro-sealed")
    await store.add_step(StepReport(run_id="r", step=0, policy="policy", policy_version=1), [seal])
    await store.close()
    assert edit(tmp_path, random.Random(1)) == ("ro-sealed", 1.0, 0.0)
    store = SQLiteStore(tmp_path / "store.sqlite")
    values = {
        i: (await store.query_spans(i))[0].attributes[semconv.REWARD_VALUE]
        for i in ("ro-sealed", "ro-evaluated")
    }
    await store.close()
    assert values == {"ro-sealed": 0.0, "ro-evaluated": 1.0}
