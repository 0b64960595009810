"""A run in which everything happens that may: retries, a retried SDK request, guided and refused calls, an
agent's own record, a failure with a reward, one without, a call past the gateway.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from contract.runs import calls_of, spans_of

from agentlightning import semconv
from agentlightning.algorithms.journal import Journal
from agentlightning.credit import assign, canonical_order, rows_digest
from agentlightning.credit.fingerprint import fingerprint_rollouts, terms_digest
from agentlightning.recipes import GRPO
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Call, Rollout, RolloutConfig, Span, StepReport
from agentlightning.types.failure import read_failure_table

RUN = "20260102-030405-rich-s1"
RECIPE = msgspec.structs.replace(GRPO(group_size=4), max_staleness=1)
TABLE = {"timeout": -1.0, "no-call": 0.5}
KINDS = (
    "plain",
    "retried",
    "superseded",
    "supplied",
    "guided",
    "over-length",
    "timeout",
    "raised",
    "past",
    "idle",
    "plain",
    "plain",
)
"""What happens in rollout ``ro-<step>-<n>``, two groups of six to a step."""
CONFIG = RolloutConfig(max_attempts=2, retry_on=["model-5xx"])


async def make_rich(root: Path, steps: int = 2) -> Path:
    """The run's folder ``root/RUN``."""
    folder = root / RUN
    folder.mkdir(parents=True)
    store = SQLiteStore(folder / "store.sqlite", clock=lambda: 1767323045.0)
    failure = {kind: action.model_dump() for kind, action in read_failure_table(TABLE).items()}
    info: dict[str, Any] = {"run_id": RUN, "recipe": RECIPE.model_dump(), "failure": failure, "steps": steps}
    info["about"] = {"agent": "agent · solve"}
    await store.add_run(RUN, info)
    journal = Journal(store, RUN, folder)
    await journal.begin(info)
    for step in range(steps):
        ids = [await _rollout(store, step, n, kind) for n, kind in enumerate(KINDS)]
        await report(store, step, ids, journal)
    summary: dict[str, Any] = {"steps": steps, "reward_after": 1.0}
    summary["chain"] = await journal.end(summary, None)
    await store.update_run(RUN, {"summary": summary})
    await store.close()
    return folder


async def report(store: SQLiteStore, step: int, ids: list[str], journal: Journal | None = None) -> None:
    """Credit and report a step, as algorithm and driver do."""
    records = await store.records(ids)
    batch = assign(records, RECIPE, version=step, failure=read_failure_table(TABLE))
    fingerprints = fingerprint_rollouts(batch, records, run_id=RUN, step=step, policy="policy", version=step)
    made = StepReport(
        run_id=RUN,
        step=step,
        policy="policy",
        policy_version=step + 1,
        version=step,
        metrics=batch.metrics,
        rows_digest=rows_digest(canonical_order(batch.rows)),
        terms_digest=terms_digest(RECIPE, read_failure_table(TABLE)),
    )
    await (journal.step(made, fingerprints) if journal else store.add_step(made, fingerprints))


async def _rollout(store: SQLiteStore, step: int, n: int, kind: str) -> str:
    rollout_id, reward = f"ro-{step}-{n}", [1.0, 0.0, 0.5][n % 3]
    rollout = Rollout(
        rollout_id=rollout_id,
        input={"q": "2 + 3"},
        run_id=RUN,
        task_id=f"t{n // 6}",
        sample=n % 6,
        group_id=f"{RUN}/train/{step}/{n // 6}",
        config=CONFIG,
    )
    await store.enqueue_many_rollouts([rollout])
    if kind == "retried":
        attempt = await _lease(store, rollout_id)
        await store.add_calls(calls_of(rollout_id, attempt, step, 1.0)[:1])
        await store.update_attempt(rollout_id, attempt, AttemptStatus.FAILED, reason="model-5xx: gone")
    attempt = await _lease(store, rollout_id)
    calls = _calls(kind, rollout_id, attempt, step, reward)
    await store.add_calls(calls)
    spans = [
        s
        for s in spans_of(rollout_id, attempt, step, reward)
        if calls or s.attributes.get(semconv.LAYER) is None
    ]
    if kind == "past":
        spans.append(_wire(rollout_id, attempt))
    named = {semconv.SUPPLIED: [calls[0].call_id, calls[-1].call_id]} if kind == "supplied" else None
    ends: dict[str, tuple[AttemptStatus, str]] = {
        "timeout": (AttemptStatus.TIMEOUT, "timeout: too long"),
        "raised": (AttemptStatus.FAILED, "agent-raised: KeyError: 'x'"),
    }
    status, reason = ends.get(kind, (AttemptStatus.SUCCEEDED, None))
    await store.update_attempt(rollout_id, attempt, status, reason=reason, spans=spans, metadata=named)
    return rollout_id


async def _lease(store: SQLiteStore, rollout_id: str) -> str:
    lease = await store.dequeue_rollout("w", run_id=RUN)
    assert lease is not None and lease.rollout.rollout_id == rollout_id
    return lease.attempt.attempt_id


def _calls(kind: str, rollout_id: str, attempt: str, step: int, reward: float) -> list[Call]:
    calls = calls_of(rollout_id, attempt, step, reward)
    if kind == "idle":
        return []
    if kind == "superseded":
        again = msgspec.structs.replace(
            calls[0], call_id=f"{attempt}-9.0", sequence=9, retry=1, response_id="again"
        )
        return [*calls, again]
    if kind == "supplied":
        own = Call(
            call_id=f"{attempt}-supplied.1",
            rollout_id=rollout_id,
            attempt_id=attempt,
            sequence=2,
            api="supplied",
            policy="policy",
            prompt_ids=[9, 9],
            response_ids=[8],
            logprobs=[-0.5],
        )
        return [*calls, own]
    if kind == "guided":
        calls[1].allowed = [[6, 8], [7, 8]]
    if kind == "over-length":
        calls.append(
            Call(
                call_id=f"{attempt}-2.0",
                rollout_id=rollout_id,
                attempt_id=attempt,
                sequence=2,
                status="error",
                policy="policy",
                masked="over-length",
                edited={"over_length": "error"},
                error="too long",
            )
        )
    return calls


def _wire(rollout_id: str, attempt: str) -> Span:
    attributes = {semconv.LAYER: "wire", semconv.RESPONSE_ID: "elsewhere", semconv.CHOICE: 0}
    return Span(
        rollout_id=rollout_id,
        attempt_id=attempt,
        name="chat",
        trace_id="t" * 32,
        span_id="past",
        attributes=attributes,
        start_time=11.0,
        end_time=11.5,
    )
