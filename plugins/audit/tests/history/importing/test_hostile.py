"""Exports of other tools that lie: refused by file and place, without a trace of them in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentlightning.cli import app
from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError
from agl_audit.history.importing.writing import write_traces
from plugins.audit.tests.history.importing.test_writing import simple

NUMBER = 'a number of "9"'
BIG = "1" + "0" * 400


def v03(attributes: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    known = {
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "q",
        "gen_ai.completion.0.content": "a",
        **(attributes or {}),
    }
    return {
        "rollout_id": "r",
        "attempt_id": "a",
        "span_id": "s",
        "attributes": known,
        "start_time": 1.0,
        **fields,
    }


def rewarded(value: Any, name: Any = "score") -> list[dict[str, Any]]:
    given = {"gen_ai.evaluation.score.value": value, "gen_ai.evaluation.name": name}
    reward = {"rollout_id": "r", "attempt_id": "a", "span_id": "t", "parent_id": "s", "attributes": given}
    return [v03(), reward]


def otlp(**span: Any) -> dict[str, Any]:
    return {"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "spanId": "s", **span}]}]}]}


def langfuse(**observation: Any) -> dict[str, Any]:
    made = {"type": "GENERATION", "input": "q", "output": "a", "startTime": "2026-01-01T00:00:00Z"}
    return {"id": "t", "observations": [{**made, **observation}]}


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


HOSTILE: dict[str, str] = {
    "nesting": '{"rollout_id": "r", "attempt_id": "a", "attributes": ' + nested(990) + "}",
    "much nesting": '{"rollout_id": "r", "attempt_id": "a", "attributes": ' + nested(100_000) + "}",
    "much nesting in a line": json.dumps(v03()) + "\n" + nested(100_000),
    "tokens": json.dumps(v03({"gen_ai.usage.input_tokens": 10**30})),
    "tokens of langfuse": json.dumps(langfuse(usageDetails={"input": 10**30, "output": 1})),
    "a reward": json.dumps(rewarded(1e308)),
    "a reward with an endless name": json.dumps([*rewarded(0.5, "n" * 5_000), *rewarded(0.5)[1:]]),
    "half a character": json.dumps(v03({"gen_ai.request.model": "\ud83d"})),
    "half a character in an id": json.dumps({**v03(), "rollout_id": "\udcff"}),
    "a time": json.dumps(v03()).replace('"start_time": 1.0', f'"start_time": {BIG}'),
    "a time of langfuse": json.dumps(langfuse(startTime=NUMBER)).replace(
        f'"{json.dumps(NUMBER)[1:-1]}"', BIG
    ),
    "digits beyond python": json.dumps(v03()).replace('"start_time": 1.0', '"start_time": ' + "9" * 5_000),
    "attributes of otlp": json.dumps(otlp(attributes=[{"key": "x", "value": {"intValue": "many"}}])),
    "a span of otlp": json.dumps(otlp(attributes=5)),
    "spans of otlp": json.dumps({"resourceSpans": [5]}),
    "a status": json.dumps(v03(status=[1])),
    "observations": json.dumps({"id": "t", "observations": 5}),
    "parameters": json.dumps(langfuse(modelParameters=[1, 2])),
    "tools": json.dumps(langfuse(input={"messages": [{"role": "user", "content": "q"}], "tools": 5})),
    "an error": json.dumps({"id": "x", "run_type": "llm", "inputs": {"prompt": "q"}, "error": {"a": 1}}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_export_is_refused_by_file_and_place(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.json").write_text(json.dumps(v03()))
    (tmp_path / "export.json").write_text(HOSTILE[case])
    store = tmp_path / "store.sqlite"
    found = CliRunner().invoke(app(), ["import", "export.json", "--store", str(store), "--run", "r"])
    assert isinstance(found.exception, UsageError), (found.output, found.exception)
    said = str(found.exception)
    assert said.startswith("export.json") and len(said) < 700
    assert any(word in said for word in (", entry ", ", line ", ", trace ", "too deeply")), said
    assert not store.exists()


def test_one_bad_trace_leaves_none_of_the_file(tmp_path: Path) -> None:
    store = tmp_path / "store.sqlite"
    (tmp_path / "export.json").write_text(
        json.dumps([v03(), {**v03({"gen_ai.usage.input_tokens": 10**30}), "rollout_id": "r2"}])
    )
    found = CliRunner().invoke(
        app(), ["import", str(tmp_path / "export.json"), "--store", str(store), "--run", "r"]
    )
    assert "trace 'r2/a'" in str(found.exception) and not store.exists()


async def test_a_rollout_is_one_transaction(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.sqlite")
    before = store.writer.commits
    done = await write_traces(store, "run", "test", [simple("t1", "a", 0.5), simple("t2", "b")])
    assert done.rollouts == 2 and store.writer.commits == before + 2
    assert [one.status for one in await store.query_rollouts()] == ["succeeded"] * 2
    again = await write_traces(store, "run", "test", [simple("t1", "a", 0.5)])
    assert (again.rollouts, again.known) == (0, 1)
    await store.close()
