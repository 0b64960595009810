"""A run in which everything happens: verified as it is, explained to numbers that can be worked out again."""

from __future__ import annotations

import asyncio
import math
import re
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from contract.rich import KINDS, RECIPE, RUN, make_rich, report
from contract.runs import calls_of, plugins, spans_of

from agentlightning.algorithms.journal import Journal
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus
from agl_audit.explanation.explain import explain
from agl_audit.run import open_run
from agl_audit.targets import open_target
from agl_audit.verification.verify import Verification, verify


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(make_rich(tmp_path_factory.mktemp("rich")))


async def verified(folder: Path) -> Verification:
    async with open_run(str(folder), plugins=plugins()) as run:
        return await verify(run)


async def explained(folder: Path, what: str) -> dict[str, Any]:
    async with open_target(what, str(folder), plugins=plugins()) as (run, target):
        return await explain(run, target)


async def test_it_verifies(folder: Path) -> None:
    result = await verified(folder)
    assert result.equal, [d.text for d in result.differences]
    assert (result.steps, result.rollouts) == (2, 2 * len(KINDS))


async def test_every_number_can_be_worked_out_again(folder: Path) -> None:
    """Over all calls of a step: advantages from the members of their groups, weights from the counts named,
    and the counts of what is left out from the reasons given.
    """
    weights, trained = 0.0, 0
    for n, kind in enumerate(KINDS):
        found = await explained(folder, f"ro-0-{n}")
        assert found["step"]["as_trained"] is True
        out: Counter[str] = Counter()
        for listed in found["calls"]:
            call = await explained(folder, listed["id"])
            if call["left_out"]:
                out[call["left_out"]["reason"]] += 1
                assert call["left_out"]["text"] and call["weight"] is None
                continue
            assert call["credit"]["value"] == (-1.0 if kind == "timeout" else [1.0, 0.0, 0.5][n % 3])
            values = [m["value"] for m in call["baseline"]["members"]]
            mean, spread = math.fsum(values) / len(values), statistics.stdev(values)
            assert call["baseline"]["value"] == pytest.approx(mean, abs=1e-12)
            wanted = (call["credit"]["value"] - mean) / (spread + 1e-6)
            assert call["advantage"]["value"] == pytest.approx(wanted, abs=1e-12)
            rollouts, tokens = map(int, re.findall(r"(\d+) (?:rollouts|tokens)", call["weight"]["formula"]))
            assert call["weight"]["value"] == pytest.approx(1 / (rollouts * tokens))
            for t in range(call["call"]["response_tokens"]):
                token = (await explained(folder, f"{listed['id']}:{t}"))["token"]
                assert token["weight_times_advantage"] == token["weight"] * token["advantage"]
                assert token["position"] == call["row"]["start"] + t
                weights += token["weight"]
            trained += 1
        ledger = found["ledger"]
        assert out + Counter({"not-recorded": ledger["left_out"].get("not-recorded", 0)}) == Counter(
            ledger["left_out"]
        )
    assert weights == pytest.approx(1.0) and trained > 12
    assert RECIPE.loss_aggregation == "rollout" and RECIPE.scale == "std"


async def test_what_is_said_of_each_kind(folder: Path) -> None:
    at = {kind: f"ro-0-{n}" for n, kind in enumerate(KINDS)}
    late = await explained(folder, at["timeout"])
    assert late["failure"] == {
        "kind": "timeout",
        "text": "the attempt took longer than allowed",
        "reward": -1.0,
    }
    assert [(r["counts"], r["unused"]) for r in late["rewards"]] == [
        (False, "nothing that a failed rollout emits counts")
    ]
    assert {"rollout": at["timeout"], "reward": -1.0, "failure": "timeout", "this": True} in late["group"]
    own = await explained(folder, at["supplied"])
    reasons = {c["id"].rpartition("-")[2]: (c["left_out"] or {}).get("reason") for c in own["calls"]}
    assert reasons == {"0.0": None, "1.0": "replaced-by-agent", "supplied.1": None}
    assert (await explained(folder, own["calls"][2]["id"]))["call"]["verdict"]["kind"] == "supplied"
    again = await explained(folder, at["retried"])
    assert [a["status"] for a in again["attempts"]] == ["failed", "succeeded"]
    assert [(c["left_out"] or {}).get("reason") for c in again["calls"]] == ["other-attempt", None, None]
    idle = await explained(folder, at["idle"])
    assert idle["failure"]["kind"] == "no-call" and idle["failure"]["reward"] == 0.5 and idle["calls"] == []
    past = await explained(folder, at["past"])
    assert past["ledger"]["left_out"] == {"not-recorded": 1}


async def journal_of(store: SQLiteStore, folder: Path) -> Journal:
    """A journal that goes on behind the last link, as that of a process which has it open."""
    journal = Journal(store, RUN, folder)
    journal.last = (await store.query_links(RUN))[-1]
    return journal


async def test_a_step_that_is_made_again_is_not_compared(tmp_path: Path) -> None:
    """Of a run that went on from a checkpoint: what it rolls out again is not what it logged before."""
    folder = await make_rich(tmp_path)
    store = SQLiteStore(folder / "store.sqlite")
    again = {"summary": None, "resumed": [{"time": 1.0, "first_step": 1}]}
    await store.update_run(RUN, again)
    journal = Journal(store, RUN, folder)
    await journal.resume({**(await store.query_runs())[0], **again}, 1, [])
    ids = [f"ro-1-{n}" for n in range(len(KINDS))]
    await store.requeue_rollouts(ids, reason="cancelled: the run broke off and went on")
    await store.close()
    result = await verified(folder)
    assert result.equal and result.redone == [1] and result.steps == 1

    store = SQLiteStore(folder / "store.sqlite")
    for _ in ids:
        lease = await store.dequeue_rollout("w", run_id=RUN)
        assert lease is not None
        rollout, attempt = lease.rollout.rollout_id, lease.attempt.attempt_id
        await store.add_calls(calls_of(rollout, attempt, 1, 1.0))
        spans = spans_of(rollout, attempt, 1, 1.0)
        await store.update_attempt(rollout, attempt, AttemptStatus.SUCCEEDED, spans=spans)
    await store.close()
    result = await verified(folder)  # rolled out, not reported yet
    assert result.equal and result.redone == [1]

    store = SQLiteStore(folder / "store.sqlite")
    await report(store, 1, ids, await journal_of(store, folder))
    await store.close()
    result = await verified(folder)
    assert result.equal and result.redone == [] and result.steps == 2


async def test_a_finished_run_has_nothing_to_make_again(tmp_path: Path) -> None:
    folder = await make_rich(tmp_path)
    store = SQLiteStore(folder / "store.sqlite")
    await store.update_run(RUN, {"resumed": [{"time": 1.0, "first_step": 1}]})
    await store.requeue_rollouts(["ro-1-0"], reason="cancelled: by hand")
    await store.close()
    result = await verified(folder)
    assert not result.equal and result.redone == []
    assert {(d.rollout_id, d.kind) for d in result.differences if d.kind != "consequence"} >= {
        ("ro-1-0", "status")
    }
