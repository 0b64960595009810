"""Sessions: what they share, what they keep apart, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agl_testing.plugin
import pytest
from core.runner.across import Event
from openai import AsyncOpenAI

import agentlightning as agl
from agentlightning import capture
from agentlightning.algorithms.counters import NothingTrained
from agentlightning.plugins.manager import build
from agentlightning.plugins.stores import open_store
from agl_autogen.instrumentor import AutoGenInstrumentor
from calc_x.headroom import chance

POLICY = Path(__file__).parents[2] / "examples" / "calc_x" / "policy"
TASKS = [{"id": i, "question": "Ida has 20 coins."} for i in range(4)]


def trainer(folder: Path, **options: Any) -> agl.Trainer:
    import agl_autogen.plugin
    import agl_local.plugin

    defaults: dict[str, Any] = dict(
        algorithm=agl.RLOO(group_size=2),
        policy=POLICY,
        options={"engine": "thread", "threads": 1, "max_len": 256},
        steps=4,
        batch_size=1,
        output=folder,
        trackers=["files"],
        plugins=build([agl_local.plugin, agl_autogen.plugin, agl_testing.plugin], discover=False),
    )
    return agl.Trainer(**{**defaults, **options})


def asking(model: str | None = None) -> Callable[..., Any]:
    async def ask(task: dict[str, Any], llm: agl.LLM) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            with agl.tagged(agent="clerk"):
                messages: list[Any] = [{"role": "user", "content": task["question"]}]
                name = model or llm.model
                answer = await client.chat.completions.create(model=name, messages=messages, max_tokens=4)
        return float(len(answer.choices[0].message.content or "") % 2)

    return ask


@pytest.mark.slow
async def test_a_select_that_matches_nobody_ends_the_run_and_says_who_called(tmp_path: Path) -> None:
    with pytest.raises(
        NothingTrained, match=r"3 steps in a row .* 2 × not-selected; .*from clerk \(see `select`\)"
    ):
        await trainer(tmp_path, select="clark").afit(asking(), TASKS)


@pytest.mark.slow
async def test_an_agent_that_calls_no_model_ends_the_run(tmp_path: Path) -> None:
    async def idle(task: dict[str, Any]) -> float:
        return 1.0

    with pytest.raises(NothingTrained, match="made no model call"):
        await trainer(tmp_path).afit(idle, TASKS)


@pytest.mark.slow
async def test_a_model_name_of_the_agents_own_means_the_trained_policy(tmp_path: Path) -> None:
    async with trainer(tmp_path, headroom={"random": chance}).session(
        asking("gpt-4o-mini"), (), TASKS
    ) as context:
        evaluation = await context.evaluate(TASKS, name="x")
        rollouts = await context.store.query_rollouts(run_id=context.run_id)
        records = await context.store.records([r.rollout_id for r in rollouts])
    assert evaluation.failed == 0
    assert {(c.model, c.policy) for r in records for c in r.calls} == {("gpt-4o-mini", "policy")}


@pytest.mark.slow
async def test_two_runs_at_once_keep_their_records_and_their_capture(tmp_path: Path) -> None:
    assert not capture.installed()
    first = trainer(tmp_path / "a", steps=1, adapters=["autogen"])
    second = trainer(tmp_path / "b", steps=3, adapters=["autogen"])
    one, two = await asyncio.gather(first.afit(asking(), TASKS), second.afit(asking(), TASKS))
    for folder, summary, steps in ((tmp_path / "a", one, 1), (tmp_path / "b", two, 3)):
        run = folder / summary["run_id"]
        assert json.loads((run / "run.json").read_text())["run_id"] == summary["run_id"]
        assert len((run / "metrics.jsonl").read_text().splitlines()) == steps
        assert summary["totals"]["calls"] == summary["totals"]["calls_exact"] == 2 * steps
    assert not capture.installed() and not AutoGenInstrumentor().is_instrumented_by_opentelemetry


@pytest.mark.slow
async def test_what_the_user_switched_on_stays_on(tmp_path: Path) -> None:
    AutoGenInstrumentor().instrument()
    try:
        async with trainer(tmp_path, adapters=["autogen"]).session(asking()):
            assert capture.installed()
        assert AutoGenInstrumentor().is_instrumented_by_opentelemetry
    finally:
        AutoGenInstrumentor().uninstrument()
        capture.uninstall()


@pytest.mark.slow
async def test_a_store_may_be_given_by_its_place(tmp_path: Path) -> None:
    place = tmp_path / "kept" / "runs.sqlite"
    place.parent.mkdir()
    async with trainer(tmp_path, store=place).session(asking()) as context:
        await context.evaluate(TASKS, name="x")
    store = open_store(place)
    rollouts = await store.query_rollouts(run_id=context.run_id)
    assert len(rollouts) == len(TASKS)
    await store.close()


@pytest.mark.slow
async def test_no_key_reaches_the_disk(tmp_path: Path) -> None:
    keys: list[str] = []

    @agl.operation("step")
    async def step(llm: agl.LLM) -> str:
        return f"used {llm.api_key}"

    async def telling(task: dict[str, Any], llm: agl.LLM) -> float:
        keys.append(llm.api_key or "")
        await step(llm)
        agl.emit_object(llm)
        return await asking()(task, llm)

    async with trainer(tmp_path).session(telling) as context:
        evaluation = await context.evaluate(TASKS, name="x")
        spans = [
            s
            for r in await context.store.query_rollouts()
            for s in await context.store.query_spans(r.rollout_id)
        ]
    assert evaluation.failed == 0 and len(keys) == 4
    assert {"agentlightning.operation", "agentlightning.object"} <= {s.name for s in spans}
    text = "".join(s.model_dump_json() for s in spans)
    for path in (tmp_path / context.run_id).rglob("*"):
        text += path.read_bytes().decode("latin-1") if path.is_file() else ""
    assert all(key.startswith("agl-") and key not in text for key in keys)


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["error", "cancel"])
async def test_a_run_that_fails_does_not_wait_for_hung_agents(
    tmp_path: Path, ends: str, capsys: pytest.CaptureFixture[str]
) -> None:
    started = Event()

    async def hung(task: dict[str, Any]) -> float:
        started.set()
        await asyncio.Event().wait()
        return 0.0

    async def run() -> None:
        async with trainer(tmp_path, timeout_seconds=None).session(hung) as context:
            await context.store.enqueue_rollout(TASKS[0], run_id=context.run_id)
            await started.wait()
            if ends == "error":
                raise RuntimeError("the algorithm is broken")
            await asyncio.Event().wait()

    task = asyncio.create_task(run())
    await started.wait()
    if ends == "cancel":
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises((RuntimeError, asyncio.CancelledError)):
        await asyncio.wait_for(task, 300)
    assert "The run did not finish. What there is of it:" in capsys.readouterr().err
