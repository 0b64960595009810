"""Small real runs for the tests of audit: a store in a run's folder, filled as runner and trainer fill it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentlightning import semconv
from agentlightning.algorithms.evaluate import summarise
from agentlightning.algorithms.journal import Journal
from agentlightning.credit import assign, canonical_order, rows_digest
from agentlightning.credit.fingerprint import fingerprint_rollouts
from agentlightning.plugins.manager import Plugins, build
from agentlightning.recipes import GRPO
from agentlightning.store import SQLiteStore
from agentlightning.store.codec import pack_span, unpack_span
from agentlightning.types import AttemptStatus, Call, Recipe, Rollout, RolloutConfig, Span, StepReport
from agentlightning.types.failure import TRACEBACK, read_failure_table
from agentlightning.types.tokens import tokens_digest

RUN = "20260102-030405-agent-s1"
REWARDS = {0: [1.0, 0.0, 1.0, 0.0], 1: [0.0, 0.0, 1.0, None]}
"""Step → final reward of each rollout (two groups of two); ``None``: its agent raised."""


RAISED = "/home/me/agent.py:12 in use_tool: `server.call(request)`"
"""Where the agent of a failed rollout raised."""


def plugins(*extra: Any) -> Plugins:
    return build(extra, discover=False)


async def make_run(
    root: Path,
    *,
    name: str = RUN,
    rewards: dict[int, list[float | None]] = REWARDS,
    recipe: Recipe | None = None,
    fingerprinted: bool = True,
    info: dict[str, Any] | None = None,
    finished: bool = True,
    chained: bool = True,
) -> Path:
    """A run of two steps; returns its folder ``root/name``. ``chained``: as today's runs are."""
    folder = root / name
    folder.mkdir(parents=True)
    recipe = recipe or GRPO(group_size=2)
    store = SQLiteStore(folder / "store.sqlite", clock=lambda: 1767323045.0)
    known = {
        "run_id": name,
        "recipe": recipe.model_dump(),
        "failure": {kind: action.model_dump() for kind, action in read_failure_table(None).items()},
        "steps": len(rewards),
        "seed": 1,
        "driver": "local",
        "versions": {"agl-core": "0.0.1"},
        "about": {"agent": "agent · solve"},
    }
    known |= info or {}
    await store.add_run(name, known)
    journal = Journal(store, name, folder) if chained else None
    if journal:
        await journal.begin(known)
    for step, values in rewards.items():
        ids = [
            await add_rollout(store, name, f"ro-{step}-{n}", value, version=step, sample=n % 2,
                              group=f"{name}/train/{step}/{n // 2}")
            for n, value in enumerate(values)
        ]  # fmt: skip
        await add_step(store, name, recipe, step, ids, fingerprinted, journal)
    await add_rollout(
        store, name, "ro-eval", 1.0, version=len(rewards), mode="val", group=f"{name}/eval/held-out/1/0"
    )
    await add_evaluation(store, name, "eval/held-out/1", ["ro-eval"], journal)
    if finished:
        summary: dict[str, Any] = {"reward_before": 0.25, "reward_after": 0.75, "total_seconds": 12.5}
        if journal:
            summary["chain"] = await journal.end(summary, None)
        await store.update_run(name, {"summary": summary})
    await store.close()
    return folder


async def add_evaluation(
    store: SQLiteStore, run_id: str, batch: str, ids: list[str], journal: Journal | None
) -> None:
    """Put an evaluation on record, as the run's context does."""
    records = await store.records(ids)
    entry = {"version": 1, "evaluation": summarise(batch.split("/")[1], records, 1.0).model_dump()}
    if journal:
        await journal.entry("evaluation", batch, entry, records)
    await store.update_run(run_id, {"evaluations": {batch: entry}})


async def add_step(
    store: SQLiteStore,
    run_id: str,
    recipe: Recipe,
    step: int,
    ids: list[str],
    fingerprinted: bool = True,
    journal: Journal | None = None,
) -> None:
    """Credit and report a step, as algorithm and driver do."""
    records = await store.records(ids)
    batch = assign(records, recipe, version=step, failure=read_failure_table(None))
    fingerprints = (
        fingerprint_rollouts(batch, records, run_id=run_id, step=step, policy="policy", version=step)
        if fingerprinted
        else []
    )
    report = StepReport(
        run_id=run_id,
        step=step,
        policy="policy",
        policy_version=step + 1,
        version=step,
        metrics=batch.metrics,
        seconds={"rollout": 1.0, "update": 0.5},
        rows_digest=rows_digest(canonical_order(batch.rows)),
    )
    await (journal.step(report, fingerprints) if journal else store.add_step(report, fingerprints))


async def add_rollout(
    store: SQLiteStore,
    run_id: str | None,
    rollout_id: str,
    reward: float | None,
    *,
    version: int = 0,
    mode: Any = "train",
    group: str | None = "g",
    sample: int = 0,
    finish: bool = True,
    config: RolloutConfig | None = None,
    task_id: str = "t1",
) -> str:
    """A rollout of two turns with a tool between them, which ended with ``reward`` (``None``: it raised)."""
    task = {"q": "2 + 3"}
    rollout = Rollout(rollout_id=rollout_id, input=task, mode=mode, run_id=run_id, task_id=task_id, seed=7,
                      group_id=group, sample=sample, config=config or RolloutConfig())  # fmt: skip
    await store.enqueue_many_rollouts([rollout])
    lease = await store.dequeue_rollout("w", run_id=run_id)
    assert lease is not None and lease.rollout.rollout_id == rollout_id
    attempt = lease.attempt.attempt_id
    await store.add_calls(calls_of(rollout_id, attempt, version, reward))
    if finish:
        status = AttemptStatus.FAILED if reward is None else AttemptStatus.SUCCEEDED
        reason = "agent-raised: RuntimeError: the tool server is gone" if reward is None else None
        spans = spans_of(rollout_id, attempt, version, reward)
        told = None if reason is None else {TRACEBACK: f"{RAISED}\nTraceback (most recent call last): …"}
        await store.update_attempt(rollout_id, attempt, status, reason=reason, spans=spans, metadata=told)
    return rollout_id


def calls_of(rollout_id: str, attempt: str, version: int, reward: float | None) -> list[Call]:
    """First a tool is asked for, then answered from; the second call extends the first, id for id."""
    last = 6 if reward else 7
    ask = [{"role": "user", "content": "2 + 3"}]
    tool = {"id": "t", "type": "function", "function": {"name": "calculate", "arguments": '{"e": "2+3"}'}}
    asked = {"role": "assistant", "content": None, "tool_calls": [tool]}
    back = [*ask, asked, {"role": "tool", "tool_call_id": "t", "content": "5"}]
    turns = [
        ([1, 2], [3, 4], ask, asked),
        ([1, 2, 3, 4, 5], [last, 8], back, {"role": "assistant", "content": "5"}),
    ]
    return [
        Call(
            call_id=f"{attempt}-{n}.0",
            rollout_id=rollout_id,
            attempt_id=attempt,
            sequence=n,
            response_id=f"{attempt}-r{n}",
            trace_id="t" * 32,
            span_id=f"call{n}",
            policy="policy",
            model="policy",
            policy_version=version,
            tags={"agent": "solver"},
            prompt_ids=prompt,
            response_ids=response,
            logprobs=[-0.5, -0.25],
            prompt_tokens=len(prompt),
            completion_tokens=len(response),
            sampling={"temperature": 1.0, "top_p": 1.0},
            asked={"temperature": 0.0},
            request={"messages": messages},
            response=message,
            finish_reason="stop",
            start_time=10.0 + n,
            end_time=10.5 + n,
        )
        for n, (prompt, response, messages, message) in enumerate(turns)
    ]


def spans_of(rollout_id: str, attempt: str, version: int, reward: float | None) -> list[Span]:
    """The agent's span, the wire layer's, the tool's, and the reward."""

    def span(name: str, span_id: str, parent: str | None, start: float, **more: Any) -> Span:
        return Span(rollout_id=rollout_id, attempt_id=attempt, name=name, trace_id="t" * 32, span_id=span_id,
                    parent_id=parent, start_time=start, end_time=start + 0.5, **more)  # fmt: skip

    wire = [
        span(
            "chat",
            f"call{n}",
            "agent",
            10.0 + n,
            attributes={
                semconv.LAYER: "wire",
                semconv.RESPONSE_ID: call.response_id,
                semconv.CHOICE: 0,
                semconv.TOKENS_DIGEST: tokens_digest(call.prompt_ids or [], call.response_ids or []),
                f"{semconv.TAG_PREFIX}agent": "solver",
            },
        )
        for n, call in enumerate(calls_of(rollout_id, attempt, version, reward))
    ]
    tool = {
        semconv.OPERATION_NAME: "execute_tool", semconv.TOOL_NAME: "calculate",
        semconv.TOOL_CALL_ARGUMENTS: '{"e": "2+3"}', semconv.TOOL_CALL_RESULT: "5",
    }  # fmt: skip
    agent = {semconv.OPERATION_NAME: "invoke_agent", semconv.AGENT_NAME: "solver"}
    out = [span("invoke_agent solver", "agent", None, 9.5, attributes=agent), *wire,
           span("execute_tool calculate", "tool", "agent", 10.6, attributes=tool)]  # fmt: skip
    if reward is not None:
        given = {semconv.REWARD_VALUE: reward, semconv.REWARD_NAME: "reward", semconv.REWARD_FINAL: True}
        out.append(span(semconv.REWARD_SPAN, "reward", None, 12.0, attributes=given))
    return out


def edit_span(store: SQLiteStore, rollout_id: str, name: str, **attributes: Any) -> None:
    """Change attributes of a stored span behind the store's back."""
    rows = store.db.connection.execute(
        "SELECT seq, data FROM spans WHERE rollout_id = ? AND name = ?", (rollout_id, name)
    ).fetchall()
    assert len(rows) == 1
    ((seq, blob),) = rows
    span = unpack_span(blob, rollout_id=rollout_id, attempt_id="", name=name)
    span.attributes = {**span.attributes, **attributes}
    store.db.connection.execute("UPDATE spans SET data = ? WHERE seq = ?", (pack_span(span), seq))


def edit(folder: Path, *statements: tuple[str, tuple[Any, ...]]) -> None:
    """Run SQL on the store of a run, behind its back."""
    import sqlite3

    with sqlite3.connect(folder / "store.sqlite") as connection:
        for text, values in statements:
            assert connection.execute(text, values).rowcount > 0
    connection.close()


async def edit_reward(folder: Path, rollout_id: str, value: float) -> None:
    """Give a rollout another reward after training."""
    store = SQLiteStore(folder / "store.sqlite")
    edit_span(store, rollout_id, semconv.REWARD_SPAN, **{semconv.REWARD_VALUE: value})
    await store.close()
