"""Two policies trained in one run beside a frozen endpoint, from the first step to looking back at it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from e2e.test_deterministic import Crash, breaking
from e2e.test_line import Watch
from e2e.two_policies import KEY, OPTIONS, digests, game, judge, said, trainer
from marks import sampled
from openai import AsyncOpenAI, NotFoundError

import agl_local.driver
import agl_local.policy.checkpoint
from agentlightning import GRPO, LLM
from agentlightning.algorithms.evaluate import NothingRewarded
from agentlightning.algorithms.journal import policy_home
from agentlightning.algorithms.rl import RLJob
from agentlightning.store import SQLiteStore
from agentlightning.train.run_folder import RunError
from agentlightning.types import Call
from agl_audit.explanation.explain import explain
from agl_audit.locations import stores
from agl_audit.run import open_run
from agl_audit.run_list import list_runs
from agl_audit.targets import open_target
from agl_audit.verification.verify import verify
from agl_local.driver import LocalDriver
from agl_local.peers import CheckpointMismatch
from agl_local.policy.checkpoint import saved_steps
from agl_local.policy.folder import fingerprint, load_policy

TASKS, HELD_OUT = [3, 5, 8], [1, 2]
NAMES = ("wolves", "town")


def parameters(folder: Path) -> str:
    return fingerprint(load_policy(folder).model)


async def calls_of(folder: Path) -> list[Call]:
    store = SQLiteStore(folder / "store.sqlite")
    rollouts = await store.query_rollouts(run_id="r")
    found = [call for r in rollouts for call in await store.query_calls(r.rollout_id)]
    await store.close()
    return found


@pytest.mark.slow
async def test_both_policies_move_and_the_frozen_one_never_does(tmp_path: Path) -> None:
    watch = Watch()
    async with judge() as referee:
        summary = await trainer(tmp_path / "runs", watch, referee).afit(game, TASKS, HELD_OUT)
    folder = tmp_path / "runs" / "r"
    # every policy has a report of every step, of the rows that are its own
    assert [(r.step, r.policy) for r in watch.reports] == [(s, n) for s in range(3) for n in NAMES]
    for batch, (wolves, town) in zip(
        watch.batches, zip(*[iter(watch.reports)] * 2, strict=True), strict=True
    ):
        assert {row.policy for row in batch.rows} == set(NAMES)
        assert wolves.metrics["rows"] == sum(row.policy == "wolves" for row in batch.rows) == 8
        assert town.metrics["calls_trained"] == 16 and wolves.metrics["rollouts"] == 8
        assert town.metrics["credit_mean"] < 0 < wolves.metrics["credit_mean"]
        assert "rollout" in wolves.seconds and "rollout" not in town.seconds
        # rewards of the sides are far apart: each is compared with itself
        assert all(abs(row.segments[-1].advantage) < 3 for row in batch.rows)
        assert all({v for v in row.versions if v >= 0} == {wolves.versions[row.policy]} for row in batch.rows)
    # both moved, each to the parameters that it reported last
    for name, seed in zip(NAMES, (1, 2), strict=True):
        last = [r for r in watch.reports if r.policy == name][-1]
        exported = parameters(folder / "policy" / name)
        assert exported == last.params_digest != parameters(tmp_path / name), seed
        assert last.policy_version == summary["policies"][name]["optimizer_steps"] > 0
        assert saved_steps(policy_home(folder, name) / "checkpoints") == [2, 3]
    # the judge answered, and is in the ledger as frozen
    ledgers = [ledger for batch in watch.batches for ledger in batch.ledgers]
    assert all(ledger.sums and ledger.left_out == {"frozen-policy": 1} for ledger in ledgers)
    assert summary["totals"]["calls_frozen"] == 24 and summary["totals"]["rollouts"] == 24
    assert summary["totals"]["calls_trained"] == 72 and summary["totals"]["logprob_gap_max"] <= 1e-4
    calls = await calls_of(folder)
    assert {(c.tags["agent"], c.policy, c.selected) for c in calls} == {
        ("wolf", "wolves", True),
        ("seer", "town", True),
        ("referee", "judge", False),
    }
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert written and not any(KEY.encode() in path.read_bytes() for path in written)


@pytest.mark.slow
async def test_looking_back_at_it(tmp_path: Path) -> None:
    watch = Watch()
    async with judge() as referee:
        one = trainer(tmp_path / "runs", watch, referee, steps=2)
        await one.afit(game, TASKS)
    folder = tmp_path / "runs" / "r"
    async with open_run(str(folder), plugins=one.plugins) as run:
        result = await verify(run)
    assert result.equal, [d.text for d in result.differences]
    assert (result.steps, result.rollouts) == (2, 16)
    assert result.rows == sum(len(batch.rows) for batch in watch.batches)
    assert "policy/town are those after step 1; the parameters in policy/wolves are" in result.params
    row = next(row for batch in watch.batches for row in batch.rows if any(row.advantages))
    async with open_target(f"{row.segments[-1].call_id}:0", str(folder), plugins=one.plugins) as (
        run,
        target,
    ):
        found = await explain(run, target)
    assert found["step"]["as_trained"] and set(found["step"]["version"]) == set(NAMES)
    assert found["call"]["policy"] == row.policy and found["baseline"]["group"][0] == f"policy={row.policy}"
    assert f"policy/{row.policy}" in found["token"]["now"]
    [line] = await list_runs(stores(str(folder)), one.plugins)
    assert (line.policies, line.steps, line.status) == (sorted(NAMES), 2, "finished")
    await take_away_a_call(folder, row.rollout_id)
    async with open_run(str(folder), plugins=one.plugins) as run:
        again = await verify(run)
    causes = [(d.rollout_id, d.kind) for d in again.differences if d.kind != "consequence"]
    assert causes == [(row.rollout_id, "calls")]  # one cause, though both policies' fingerprints say so


async def take_away_a_call(folder: Path, rollout_id: str) -> None:
    """Take a call of the rollout away, which both policies' fingerprints cover."""
    store = SQLiteStore(folder / "store.sqlite")
    store.db.connection.execute(
        "DELETE FROM calls WHERE seq = (SELECT max(seq) FROM calls WHERE rollout_id = ?)", (rollout_id,)
    )
    store.db.connection.commit()
    await store.close()


@pytest.mark.slow
async def test_timing_changes_nothing_and_a_snapshot_stays_as_it_is(tmp_path: Path) -> None:
    found = []
    async with judge() as referee:
        for n_runners in (1, 16):
            watch = Watch()
            made = trainer(tmp_path / f"{n_runners}", watch, referee, old=True, concurrency=n_runners)
            await made.afit(game, TASKS)
            found.append(digests(watch))
            ghosts = [c for c in await calls_of(tmp_path / f"{n_runners}" / "r") if c.policy == "old"]
            assert len(ghosts) == 24 and {c.policy_version for c in ghosts} <= {0, None}
            assert all(c.sampling["seed"] and not c.selected for c in ghosts)
    assert found[0] == found[1] and len(found[0]) == 6


# ------------------------------------------------------------------------------------ broken off, anywhere
async def life(folder: Path, referee: LLM, **options: Any) -> Watch:
    watch = Watch()
    await trainer(folder, watch, referee, evaluate_every=1, **options).afit(game, TASKS, HELD_OUT)
    return watch


async def whole(folder: Path) -> dict[str, Any]:
    """What a run is in the end."""
    run = folder / "r"
    store = SQLiteStore(run / "store.sqlite")
    steps = await store.query_steps("r")
    [info] = await store.query_runs()
    await store.close()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    async with open_run(str(run)) as opened:
        checked = await verify(opened)
    assert not checked.differences and checked.rollouts == 24
    return {
        "digests": [(s.step, s.policy, s.rows_digest, s.params_digest) for s in steps],
        "lines": sorted((one["step"], one["policy"], one["params_digest"]) for one in lines),
        "policies": info["summary"]["policies"],
        "totals": {k: v for k, v in info["summary"]["totals"].items() if not k.startswith("calls")},
        "evaluations": sorted(info["evaluations"]),
    }


POINTS = [
    (LocalDriver, "_save", "before", 1),
    (LocalDriver, "_save", "after", 1),
    (LocalDriver, "_save", "before", 4),
    (LocalDriver, "_save", "after", 3),
    (RLJob, "saved", "after", 1),
    (agl_local.driver, "prune", "after", 1),
    (LocalDriver, "_publish", "after", 3),
    (SQLiteStore, "add_step", "after", 5),
    (LocalDriver, "export", "before", 2),
]
"""Where a run is broken off; each of the first is between the checkpoints of its two policies."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")

    async def run() -> dict[str, Any]:
        async with judge() as referee:
            await life(folder / "runs", referee)
        return await whole(folder / "runs")

    return asyncio.run(run())


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("owner", "name", "when", "nth"), sampled(POINTS), ids=lambda v: getattr(v, "__name__", str(v))
)
async def test_a_run_broken_off_between_its_policies_becomes_the_run_it_was_to_be(
    owner: Any, name: str, when: str, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    undisturbed: dict[str, Any],
) -> None:  # fmt: skip
    async with judge() as referee:
        with monkeypatch.context() as patch:
            breaking(owner, name, when, nth, patch)
            with pytest.raises(Crash):
                await life(tmp_path / "runs", referee)
        await life(tmp_path / "runs", referee, resume=True, concurrency=1)
    assert await whole(tmp_path / "runs") == undisturbed


@pytest.mark.slow
async def test_what_cannot_be_gone_on_with_is_said(tmp_path: Path) -> None:
    async with judge() as referee:
        await life(
            tmp_path / "runs",
            referee,
            save_every=1,
            options={**OPTIONS, "save_every": 1, "keep_checkpoints": 5},
        )
        folder = tmp_path / "runs" / "r"
        with pytest.raises(RunError, match=r"agents\.wolf was"):
            await life(tmp_path / "runs", referee, resume=True, policies={"re:.*": "town"})
        kept = policy_home(folder, "town") / "checkpoints"
        for step in (2, 3):
            (kept / f"step-{step:06d}").rename(tmp_path / f"gone-{step}")
        with pytest.raises(
            CheckpointMismatch, match=r"'wolves' has checkpoints of steps 2, 3 .*town: 1\).*from step 1"
        ):
            await life(tmp_path / "runs", referee, resume=True)
        assert saved_steps(policy_home(folder, "wolves") / "checkpoints") == [1, 2, 3]  # nothing was removed


# --------------------------------------------------------------------------------- who has no policy, no rows
@pytest.mark.slow
async def test_an_agent_without_a_policy_is_named(tmp_path: Path) -> None:
    told: list[str] = []

    async def stranger(task: int, llm: LLM) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            await said(client, llm, "wolf", f"{task} coins")
            try:
                await said(client, llm, "hunter", f"{task} coins")
            except NotFoundError as error:
                told.append(str(error))
                raise
        return 1.0

    async with judge() as referee:
        with pytest.raises(NothingRewarded, match=r"no policy is given to 'hunter': add its agent, role or"):
            await trainer(tmp_path / "runs", Watch(), referee).afit(stranger, TASKS, HELD_OUT)
    assert told and "wolves" in told[0]


@pytest.mark.slow
async def test_a_policy_without_rows_is_left_as_it_is_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def lonely(task: int, llm: LLM) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            return float(len(await said(client, llm, "wolf", f"{task} coins")) % 2)

    watch = Watch()
    async with judge() as referee:
        one = trainer(tmp_path / "runs", watch, referee, algorithm=GRPO(group_size=4))
        with caplog.at_level(logging.WARNING):
            summary = await one.afit(lonely, TASKS)
    town = [r for r in watch.reports if r.policy == "town"]
    assert [(r.policy_version, r.metrics["skipped"], r.metrics["rows"]) for r in town] == [(0, 1.0, 0)] * 3
    assert summary["policies"]["town"]["skipped"] == 3 and summary["policies"]["wolves"]["rows"] == 24
    assert "no trainable row of policy 'town'" in caplog.text
    assert "3 steps in a row trained nothing of policy 'town': no call went to it" in capsys.readouterr().err
    assert parameters(tmp_path / "runs" / "r" / "policy" / "town") == parameters(tmp_path / "town")
