"""The agent through gateway, store, credit and driver: what is trained, and what is shown of it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph", reason="the agent is a LangGraph graph")
pytest.importorskip("langchain_openai")
pytest.importorskip("torch")

from agentlightning.cli.options import read
from agentlightning.train.configured import configure
from agentlightning.types import UsageError
from agl_audit.run import open_run
from spider import journey
from spider.demo import real, sound
from spider.evaluate import POLICY

HERE = Path(journey.__file__).parent
SMALL = [
    "training.steps=1",
    "training.batch_size=12",
    "training.recipe.group_size=4",
    "environment.val.limit=12",
    "environment.headroom={}",
    "trackers=[files]",
    "backend.options={lr: 1.0e-4, threads: 1, engine: thread, max_num_seqs: 32, max_len: 512}",
]

pytestmark = pytest.mark.plugins


async def train(folder: Path, *sets: str) -> dict[str, Any]:
    config = read(HERE / "cpu.yaml", [*SMALL, f"output={folder}", *sets])
    trainer, agent, tasks, val = configure(config)
    summary: dict[str, Any] = await trainer.afit(agent, tasks, val)
    return summary


async def nodes(run: Any) -> tuple[Counter[str], Counter[str]]:
    """Calls of the training rollouts by node, made and selected."""
    rollouts = await run.store.query_rollouts(run_id=run.run_id, mode="train")
    records = await run.store.records([rollout.rollout_id for rollout in rollouts])
    calls = [call for record in records for call in record.calls]
    return Counter(c.tags["node"] for c in calls), Counter(c.tags["node"] for c in calls if c.selected)


@pytest.mark.slow
async def test_writing_is_trained_and_reviewing_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = await train(tmp_path)
    place = tmp_path / summary["run_id"]
    async with open_run(str(place)) as run:
        made, selected = await nodes(run)
        assert made["write"] == 48 and made["check"] >= 48 and made["rewrite"] > 0
        assert selected == {"write": 48, "rewrite": made["rewrite"]}
        told = await journey.story(run, await _corrected(run))
    (line,) = (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = json.loads(line)["metrics"]
    assert metrics["left_out/not-selected"] == made["check"]
    assert metrics["calls_trained"] == 48 + made["rewrite"]
    assert metrics["exact"] == 1.0 and metrics["rollouts_failed"] == 0
    assert summary["totals"]["logprob_gap_max"] < 1e-4
    _the_page_shows_it(told)
    await journey._write(str(place), told["rollout"], tmp_path / "page")
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"journey.html", "journey.md"}
    assert "journey.html" in capsys.readouterr().out
    async with open_run(str(place)) as run:
        with pytest.raises(journey.NoJourney, match="no rollout ro-0"):
            await journey.story(run, "ro-0")


async def _corrected(run: Any) -> str:
    rollouts = await run.store.query_rollouts(run_id=run.run_id, mode="train")
    records = await run.store.records([rollout.rollout_id for rollout in rollouts])
    found = [r for r in records if "rewrite" in [call.tags["node"] for call in r.calls]]
    return str(found[0].rollout.rollout_id)


def _the_page_shows_it(told: dict[str, Any]) -> None:
    first, review, again = told["calls"][:3]
    assert (first.node, review.node, again.node) == ("write", "check", "rewrite")
    assert first.outcome and (first.failed or first.outcome == "No rows.")
    assert review.out and review.advantage is None and not review.outcome
    assert again.advantage == first.advantage is not None  # broadcast: both earn what the rollout earned
    assert again.text.startswith("```sql\n") and "Judgement:" in again.asked
    assert len(told["group"]) == 4 and told["as_trained"]
    page, text = journey.html(told), journey.markdown(told)
    for shown in (page, text):
        assert told["rollout"] in shown and "rewrite" in shown and "not trained" in shown
    assert not any(mark in page for mark in ("<script", "src=", "href=", "http"))  # it needs nothing else


@pytest.mark.slow
async def test_every_call_has_a_reward_of_its_own(tmp_path: Path) -> None:
    summary = await train(
        tmp_path, "agent.target=spider.scored:agent", "training.recipe.credit=per_call", "agent.select=null"
    )
    async with open_run(str(tmp_path / summary["run_id"])) as run:
        made, selected = await nodes(run)
        assert made == selected
        rollouts = await run.store.query_rollouts(run_id=run.run_id, mode="train")
        records = await run.store.records([rollout.rollout_id for rollout in rollouts])
    rewarded = 0
    for record in records:
        by_call = {r.span_id or r.call_id: r.value for r in record.rewards if r.span_id or r.call_id}
        assert len(by_call) == len(record.calls)
        last = [c for c in sorted(record.calls, key=lambda c: c.sequence) if c.tags["node"] != "check"][-1]
        (final,) = [r.value for r in record.rewards if r.final and not (r.span_id or r.call_id)]
        assert by_call[last.span_id if last.span_id in by_call else last.call_id] == final
        rewarded += len(by_call)
    assert rewarded == sum(made.values())


@pytest.mark.slow
async def test_a_missing_database_is_a_failed_rollout_and_no_zero(tmp_path: Path) -> None:
    task = {"id": "1", "db_id": "zoo", "question": "?", "query": "SELECT 1", "kind": "", "folder": ""}
    data = tmp_path / "tasks.jsonl"
    data.write_text(json.dumps(task) + "\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"zoo|not one rollout"):
        await train(tmp_path, f"environment.val={{file: {data}}}", "training.steps=0")


@pytest.mark.slow
async def test_real_questions_go_the_whole_way(tmp_path: Path) -> None:
    shutil.copytree(POLICY, tmp_path / "policy")
    evaluations, ledgers = await real(str(tmp_path / "policy"), str(tmp_path), limit=6)
    by_oracle, by_tiny = evaluations
    assert by_oracle.reward == 1.0 and by_oracle.n == by_tiny.n == 6
    assert sound(evaluations, ledgers)
