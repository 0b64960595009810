"""A real run, looked back at: verified to the last weight and parameter, explained to the last token, and one
edited reward is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract.runs import edit_reward
from e2e.test_line import THREAD, Watch, trainer

from agentlightning.plugins.stores import open_store
from agl_audit.attempt_tree import attempt_trees
from agl_audit.explanation.explain import explain
from agl_audit.run import open_run
from agl_audit.targets import open_target
from agl_audit.verification.verify import verify
from calc_x.agent import solve
from calc_x.datasets import load


@pytest.mark.slow
async def test_looking_back_at_a_run(tmp_path: Path) -> None:
    watch = Watch()
    options: dict[str, Any] = {**THREAD, "digest_every": 1, "save_every": 2}
    one = trainer(tmp_path, watch, steps=2, batch_size=2, options=options)
    summary = await one.afit(solve, load("generated:train", limit=50))
    folder = tmp_path / summary["run_id"]
    async with open_run(str(folder), plugins=one.plugins) as run:
        result = await verify(run)
    assert result.equal, [d.text for d in result.differences]
    assert (result.steps, result.rollouts) == (2, 16) and result.params.endswith("are those after step 1")
    assert result.rows == sum(len(batch.rows) for batch in watch.batches)
    assert result.tokens == sum(row.trained_tokens for batch in watch.batches for row in batch.rows)

    step, row = next(
        (step, row) for step, b in enumerate(watch.batches) for row in b.rows if any(row.advantages)
    )
    segment = row.segments[-1]
    async with open_target(f"{segment.call_id}:0", str(folder), plugins=one.plugins) as (run, target):
        found = await explain(run, target, folder / "checkpoints" / "step-000002" / "policy")
        (tree,) = await attempt_trees(run, target)
    token = found["token"]
    assert found["step"]["as_trained"] and found["row"]["id"] == row.row_id
    assert token["weight_times_advantage"] == row.weights[segment.start] * row.advantages[segment.start]
    assert token["logprob_then"] == pytest.approx(row.logprobs[segment.start], abs=1e-6)
    assert token["text"] and isinstance(token["logprob_now"], float)
    assert tree.status == "succeeded" and tree.spans > 1

    store = open_store(folder / "store.sqlite")
    rewards = {r.rollout.rollout_id: r.rewards[0].value for r in await store.records([row.rollout_id])}
    await store.close()
    await edit_reward(folder, row.rollout_id, 1.0 - rewards[row.rollout_id])
    async with open_run(str(folder), plugins=one.plugins) as run:
        again = await verify(run)
    causes = [(d.step, d.rollout_id, d.kind, d.then) for d in again.differences if d.kind != "consequence"]
    assert causes == [(step, row.rollout_id, "reward", rewards[row.rollout_id])]
