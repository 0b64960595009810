"""Imported traces as rollouts of a store, and what comes of them: chats, tasks, another reward."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentlightning.cli import app
from agentlightning.credit.rewards import resolve
from agentlightning.credit.verdicts import verdicts
from agentlightning.plugins.manager import load
from agentlightning.store import SQLiteStore
from agentlightning.types import Record
from agl_audit.history.chats import chats_of, chosen
from agl_audit.history.importing.files import TraceFile
from agl_audit.history.importing.trace import ImportedCall, ImportedTrace
from agl_audit.history.importing.writing import write_traces
from agl_audit.history.tasks import stored
from plugins.audit.tests.history.importing.written import (
    ANSWER,
    ANSWERS,
    ASKED,
    CALLED,
    RESULT,
    SYSTEM,
    USER,
    WRITERS,
    agentops,
)


@pytest.fixture
async def sqlite() -> AsyncIterator[SQLiteStore]:
    store = SQLiteStore(":memory:")
    yield store
    await store.close()


def simple(trace_id: str, text: str, reward: float | None = None, error: str | None = None) -> ImportedTrace:
    call = ImportedCall([{"role": "user", "content": "q"}], {"role": "assistant", "content": text})
    rewards = [] if reward is None else [("score", reward)]
    return ImportedTrace(trace_id, "q", [call], rewards, error)


async def imported(store: SQLiteStore, *traces: ImportedTrace) -> list[Record]:
    await write_traces(store, "run", "test", traces)
    ids = [rollout.rollout_id for rollout in await store.query_rollouts(run_id="run")]
    return await store.records(ids)


async def test_a_trace_is_a_rollout_without_token_ids(sqlite: SQLiteStore, tmp_path: Path) -> None:
    traces = TraceFile(agentops(tmp_path), load().table("agl_import_formats")).traces()
    done = await write_traces(sqlite, "run", "agentops", traces)
    assert (done.traces, done.rollouts, done.calls, done.rewards, done.rewarded) == (1, 1, 2, 1, 1)
    [rollout] = await sqlite.query_rollouts(run_id="run")
    assert rollout.status == "succeeded" and rollout.input == "What is 2 + 3?"
    [record] = await sqlite.records([rollout.rollout_id])
    assert resolve(record).outcome == 0.5
    assert [call.request["messages"] for call in record.calls if call.request] == list(ASKED)
    assert [call.tags for call in record.calls] == [{"agent": "solver"}] * 2
    assert {verdict.kind for verdict in verdicts(record).values()} == {"no-ids"}


async def test_a_trace_is_imported_once(sqlite: SQLiteStore) -> None:
    traces = [simple("a", "one"), ImportedTrace("empty", "q")]
    first = await write_traces(sqlite, "run", "test", traces)
    again = await write_traces(sqlite, "run", "test", [*traces, simple("b", "two", error="it broke")])
    assert (first.rollouts, first.known, first.left_out) == (1, 0, {"trace-without-calls": 1})
    assert (again.rollouts, again.known, again.traces) == (1, 1, 3)
    statuses = Counter(str(r.status) for r in await sqlite.query_rollouts(run_id="run"))
    assert statuses == {"succeeded": 1, "failed": 1}


@pytest.mark.parametrize(
    "rewards, chosen_name, outcome",
    [
        ([("score", 1.0)], None, 1.0),
        ([("reward", 1.0), ("style", 0.2)], None, 1.0),
        ([("right", 1.0), ("style", 0.2)], None, None),
        ([("right", 1.0), ("style", 0.2)], "style", 0.2),
    ],
)
async def test_which_score_is_the_reward(
    sqlite: SQLiteStore, rewards: list[tuple[str, float]], chosen_name: str | None, outcome: float | None
) -> None:
    trace = simple("a", "one")
    trace.rewards = rewards
    await write_traces(sqlite, "run", "test", [trace], chosen_name)
    [rollout] = await sqlite.query_rollouts(run_id="run")
    [record] = await sqlite.records([rollout.rollout_id])
    assert resolve(record).outcome == outcome and len(record.rewards) == len(rewards)


async def test_the_best_of_each_task_are_chosen(sqlite: SQLiteStore) -> None:
    records = await imported(
        sqlite, *(simple(str(n), f"answer {n}", reward) for n, reward in enumerate((0.1, 0.9, 0.5, None)))
    )
    left_out: Counter[str] = Counter()
    [best] = chosen(records, None, 1, left_out)
    assert best.calls[0].response == {"role": "assistant", "content": "answer 1"}
    assert left_out == {"not-best": 2, "no-reward": 1}
    left_out = Counter()
    assert len(chosen(records, 0.5, None, left_out)) == 2 and left_out == {"below-minimum": 1, "no-reward": 1}
    assert len(chosen(records, None, None, Counter())) == 4


async def test_a_conversation_is_one_chat_in_which_each_answer_is_learned_once(sqlite: SQLiteStore) -> None:
    other = {"role": "assistant", "content": "It is six."}
    calls = [
        ImportedCall(ASKED[0], ANSWERS[0], agent="solver", tools=[{"type": "function"}]),
        ImportedCall(ASKED[1], ANSWERS[1], agent="solver"),
        ImportedCall(ASKED[1], other, agent="critic"),
        ImportedCall([USER], None, error="refused"),
    ]
    [record] = await imported(sqlite, ImportedTrace("t", "q", calls))
    left_out: Counter[str] = Counter()
    first, second = chats_of(record, None, left_out)
    assert first == {"messages": [SYSTEM, USER, CALLED, RESULT, ANSWER]}
    assert second["messages"][-1] == other and second["messages"][2] == {**CALLED, "weight": 0}
    assert left_out == {"calls/error": 1}
    left_out = Counter()
    [only] = chats_of(record, "critic", left_out)
    assert only["messages"][-1] == other and left_out == {"calls/error": 1, "calls/other-agent": 1}


@pytest.mark.parametrize("name", ["v03", "langfuse"])
def test_the_commands(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = WRITERS[name](tmp_path)
    run = CliRunner().invoke
    said = run(app(), ["import", str(path), "--run", "theirs"])
    assert said.exit_code == 0, said.output
    assert f"1 rollouts of 1 traces ({name}), 2 calls without token ids, 1 rewards" in said.output
    again = run(app(), ["import", str(path), "--run", "theirs", "--json"])
    assert json.loads(again.output)["known"] == 1
    chats = run(app(), ["chats", "theirs", "--output", "chats.jsonl", "--min-reward", "0.5"])
    assert chats.exit_code == 0 and "1 chats of 1 rollouts" in chats.output
    [row] = map(json.loads, Path("chats.jsonl").read_text().splitlines())
    assert row["messages"][-1] == ANSWER
    none = run(app(), ["chats", "theirs", "--output", "chats.jsonl", "--min-reward", "0.6"])
    assert none.exit_code != 0 and "below-minimum" in str(none.exception)
    listed = run(app(), ["runs", "--json"])
    assert json.loads(listed.output)["status"] == "finished"
    assert stored("theirs") == ["What is 2 + 3?"]


def test_a_task_that_was_evaluated_first_is_a_task_too(tmp_path: Path) -> None:
    async def write() -> None:
        store = SQLiteStore(tmp_path / "store.sqlite")
        await store.add_run("run", {})
        for question, mode in (("a", "val"), ("b", "val"), ("a", "train"), ("c", "train"), ("a", "train")):
            await store.enqueue_rollout(question, mode, run_id="run")
        await store.close()

    asyncio.run(write())
    assert stored("run", str(tmp_path / "store.sqlite")) == ["a", "c"]
