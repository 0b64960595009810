"""One line from end to end, on real parts: AutoGen agent, adapter, wire, gateway, store, credit, driver,
engine.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import agl_testing.plugin
import pytest

import agl_trackers.plugin
from agentlightning import GRPO, LLM, Trainer, hookspecs
from agentlightning.algorithms.evaluate import NothingRewarded
from agentlightning.credit.digest import canonical_order, rows_digest
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import build
from agentlightning.plugins.stores import open_store
from agentlightning.train.config import from_fields
from agentlightning.types import Batch, Progress, StepReport
from agentlightning.types.base import ConfigError
from calc_x.agent import solve
from calc_x.datasets import load
from calc_x.headroom import chance, oracle

POLICY = Path(__file__).parents[2] / "examples" / "calc_x" / "policy"


PROCESS = {"threads": 1, "engine_threads": 1, "max_len": 512}
"""The engine in a process of its own, as it is for a user."""
THREAD = {"threads": 1, "engine": "thread", "max_len": 512}
"""The engine in a thread, which starts at once."""
MOMENTS = {
    name
    for name, hook in vars(hookspecs).items()
    if name.startswith("agl_") and inspect.signature(hook).return_annotation == "None"
}


class Watch:
    """Keeps what the run's hooks say."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.reports: list[StepReport] = []
        self.calls = 0
        self.progress: list[Progress] = []

    @hookimpl
    def agl_rows_built(self, batch: Batch) -> None:
        self.batches.append(batch)

    @hookimpl
    def agl_policy_updated(self, report: StepReport) -> None:
        self.reports.append(report)

    @hookimpl
    def agl_progress(self, progress: Progress) -> None:
        self.progress.append(progress)

    @hookimpl
    def agl_call_recorded(self) -> None:
        self.calls += 1


def trainer(folder: Path, watch: Watch, **options: Any) -> Trainer:
    import agl_gateway.plugin

    import agl_autogen.plugin
    import agl_cluster.plugin
    import agl_local.plugin
    import agl_schedules.plugin

    defaults: dict[str, Any] = dict(
        algorithm=GRPO(group_size=4),
        policy=POLICY,
        options=THREAD,
        steps=2,
        batch_size=3,
        output=folder,
        adapters=["autogen"],
        trackers=["files"],
        plugins=build(
            [
                agl_local.plugin,
                agl_autogen.plugin,
                agl_cluster.plugin,
                agl_gateway.plugin,
                agl_schedules.plugin,
                agl_testing.plugin,
                agl_trackers.plugin,
                watch,
            ],
            discover=False,
        ),
    )
    return Trainer(**{**defaults, **options})


def evaluation_calls(folder: Path) -> int:
    lines = (folder / "evaluations.jsonl").read_text().splitlines()
    assert len(lines) == 6  # before and after, greedy and sampled; oracle; random
    return sum(int(json.loads(line)["metrics"]["calls_made"]) for line in lines)


@pytest.mark.slow
async def test_train_two_steps(tmp_path: Path) -> None:
    watch = Watch()
    headroom = {"oracle": oracle, "random": chance}
    summary = await trainer(tmp_path, watch, options=PROCESS, headroom=headroom).afit(
        solve, load("generated:train", limit=50), load("generated:heldout", limit=6)
    )
    folder = tmp_path / summary["run_id"]
    # every call was captured exactly, and the trainer's own forward agrees with what was stored
    totals = summary["totals"]
    assert totals["rollouts"] == 24 and totals["calls"] == totals["calls_exact"] >= 24
    assert 0 < totals["logprob_gap_max"] <= 1e-4
    assert summary["headroom"]["oracle"] == 1.0 and summary["accounts"] == {}
    # the ledger of every rollout sums, and the driver trained exactly the rows that credit built
    assert [len(b.ledgers) for b in watch.batches] == [12, 12]
    assert all(ledger.sums and ledger.made == ledger.recorded for b in watch.batches for ledger in b.ledgers)
    assert [r.rows_digest for r in watch.reports] == [
        rows_digest(canonical_order(b.rows)) for b in watch.batches
    ]
    assert watch.calls == totals["calls"] + evaluation_calls(folder)
    # versions move with the steps: rows of step n were sampled by version n
    assert [
        {v for row in b.rows for v, m in zip(row.versions, row.mask, strict=True) if m} for b in watch.batches
    ] == [{0}, {1}]
    assert [r.policy_version for r in watch.reports] == [1, 2]
    # what a person finds afterwards
    assert json.loads((folder / "summary.json").read_text())["reward_before"] == summary["reward_before"]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (folder / "policy" / "model.safetensors").exists()
    store = open_store(folder / "store.sqlite")
    assert [s.step for s in await store.query_steps(summary["run_id"])] == [0, 1]
    await store.close()


async def test_evaluations_between_steps_and_under_one_name_are_made_anew(tmp_path: Path) -> None:
    one = trainer(
        tmp_path, Watch(), steps=3, batch_size=1, evaluate_every=1, options=THREAD, trackers=["files"]
    )
    train, held_out = load("generated:train", limit=8), load("generated:heldout", limit=2)
    summary = await one.afit(solve, train, held_out)
    lines = (tmp_path / summary["run_id"] / "evaluations.jsonl").read_text().splitlines()
    names = [json.loads(line)["name"] for line in lines]
    assert names == ["before", "before-sampled", "step-1", "step-2", "after", "after-sampled"]
    async with one.session(solve) as context:
        first = await context.evaluate(held_out, name="again")
        second = await context.evaluate(held_out, name="again")
        assert first.rewards == second.rewards
        assert len(await context.store.query_rollouts(run_id=context.run_id)) == 4


@pytest.mark.slow
async def test_a_failure_can_be_given_a_reward(tmp_path: Path) -> None:
    async def shaky(task: Mapping[str, Any], llm: LLM) -> float:
        reward = await solve(task, llm)
        if reward:
            raise RuntimeError("broken after all")
        return reward

    watch = Watch()
    one = trainer(tmp_path, watch, steps=1, options=THREAD, failure={"agent-raised": 1.0})
    await one.afit(shaky, load("generated:train", limit=50))
    [batch] = watch.batches
    assert batch.metrics["reward_count"] == 12 and batch.metrics["rollouts_failed"] > 0
    assert not any(ledger.left_out.get("failed-rollout") for ledger in batch.ledgers)
    with pytest.raises(ValueError, match="unknown kind 'agent-exploded'"):
        await trainer(tmp_path, Watch(), failure={"agent-exploded": 0.0}).afit(shaky, [1])


@pytest.mark.slow
async def test_every_moment_is_heard(tmp_path: Path) -> None:
    """The tracker ``events`` listens to all moment hooks but that of progress: each must come, in order, for
    every rollout.
    """
    watch = Watch()
    options = {**THREAD, "save_every": 1}
    data = load("generated:train", limit=8), load("generated:heldout", limit=2)
    one = trainer(tmp_path, watch, steps=1, batch_size=2, options=options, trackers=["events"], run="r")
    await one.afit(solve, *data)
    file = tmp_path / "r" / "events.jsonl"
    events = [json.loads(line) for line in file.read_text().splitlines()]
    kinds = [event["event"] for event in events]
    assert {f"agl_{kind}" for kind in kinds} == MOMENTS - {
        "agl_run_resumed",
        "agl_run_failed",
        "agl_progress",
    }
    awaited = {one.what: len(one.rollouts) for one in watch.progress}
    assert awaited == {"evaluation before": 2, "evaluation before-sampled": 2, "rollouts": 8, "update": 0} | {
        "evaluation after": 2,
        "evaluation after-sampled": 2,
    }
    one.config = from_fields({"resume": True}, one.config)
    await one.afit(solve, *data)
    assert json.loads(file.read_text().splitlines()[len(events)])["event"] == "run_resumed"
    assert kinds[0] == "run_started" and kinds[-1] == "run_finished"
    assert kinds.count("rollout_finished") == kinds.count("reward_emitted") == 8 + 4 * 2
    rollout = next(e["rollout_id"] for e in events if e["event"] == "rollout_finished")
    mine = [e["event"] for e in events if e.get("rollout_id") == rollout]
    assert mine[0] == "rollout_started" and mine[-2:] == ["reward_emitted", "rollout_finished"]
    assert set(mine[1:-2]) == {"call_recorded"}


@pytest.mark.slow
async def test_failing_agents_are_left_out_and_counted(tmp_path: Path) -> None:
    """Every third rollout breaks: no zero reaches a baseline, and the account says why."""
    count = iter(range(10_000))

    async def shaky(task: Mapping[str, Any], llm: LLM) -> float:
        reward = await solve(task, llm)
        if next(count) % 3 == 0:
            raise RuntimeError("tool server is gone")
        return reward

    watch = Watch()
    await trainer(tmp_path, watch, steps=1).afit(shaky, load("generated:train", limit=50))
    [batch] = watch.batches
    assert batch.metrics["rollouts_failed"] == 4 and batch.metrics["reward_count"] == 8
    out = [ledger for ledger in batch.ledgers if ledger.left_out.get("failed-rollout")]
    assert len(out) == 4 and all(ledger.trained == 0 and ledger.sums for ledger in out)
    failed = {ledger.rollout_id for ledger in out}
    assert not failed & {row.rollout_id for row in batch.rows}


@pytest.mark.slow
async def test_a_dead_runner_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentlightning.runner.runner import Runner

    async def broken(self: Runner, *args: Any) -> None:
        raise OSError("the queue is gone")

    monkeypatch.setattr(Runner, "_lease", broken)
    with pytest.raises(OSError, match="the queue is gone"):
        await trainer(tmp_path, Watch(), steps=1).afit(solve, load("generated:train", limit=8))


@pytest.mark.slow
async def test_an_agent_that_always_breaks_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    async def broken(task: Mapping[str, Any], llm: LLM) -> float:
        raise ConnectionError("no route to the tool server")

    train = load("generated:train", limit=8)
    with pytest.raises(
        NothingRewarded, match=r"none of 4 rollouts got a reward: 4 × agent-raised: ConnectionError"
    ):
        await trainer(tmp_path, Watch()).afit(broken, train, load("generated:heldout", limit=4))
    with pytest.raises(
        NothingRewarded, match=r"steps 1 to 3: not one rollout got a reward.*no route to the tool"
    ):
        await trainer(tmp_path, Watch(), steps=9).afit(broken, train)


async def test_unknown_recipe_field_for_the_driver_is_refused(tmp_path: Path) -> None:
    from agentlightning.credit.checks import check_supported_fields

    with pytest.raises(ConfigError, match=r"driver 'small' does not implement kl=0.1 of recipe 'grpo'"):
        check_supported_fields(GRPO(kl=0.1), "small", frozenset())
