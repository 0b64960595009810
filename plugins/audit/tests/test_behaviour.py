"""What the policy does in its rollouts, and the alarms, on figures and in runs whose reward is wrong."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from contract.runs import make_run, plugins
from core.credit.builders import make_record
from rich.console import Console

from agentlightning.credit.fingerprint import fingerprint_record
from agentlightning.store import SQLiteStore
from agentlightning.train.config import from_fields
from agentlightning.types import Batch, Call, Ledger, Record, StepReport
from agentlightning.types.failure import DEFAULT_FAILURE_TABLE
from agl_audit.behaviour.alarms import KINDS, WINDOW, alarms, alarms_of, evidence
from agl_audit.behaviour.rollout import (
    Behaviour,
    Seen,
    ToolRuns,
    behaviour_of,
    shown_figures,
    step_metrics,
)
from agl_audit.behaviour.watch import BehaviourWatch
from agl_audit.commands.runs import _show
from agl_audit.commands.top import screen
from agl_audit.plugin import agl_batch_edits
from agl_audit.rollout_list import list_rollouts
from agl_audit.run import open_run
from agl_audit.run_log import NAME, run_log
from agl_audit.watching import Watcher

SERIES: dict[str, list[dict[str, float]]] = json.loads(
    (Path(__file__).parent / "behaviour_series.json").read_text(encoding="utf-8")
)
"""Name of a real run → metrics of its steps (`make behaviour`)."""


def call(n: int, text: str = "", tools: int = 0, **more: Any) -> Call:
    asked = [{"function": {"name": "add", "arguments": f'{{"n": {i}}}'}} for i in range(tools)]
    given: dict[str, Any] = {"response_ids": [1, 2, 3], "logprobs": [-1.0, -0.5, -0.5], "policy": "policy"}
    given |= {"response": {"content": text, "tool_calls": asked}, "prompt_ids": [0], **more}
    return Call(call_id=f"c{n}", rollout_id="r", attempt_id="r-a", sequence=n, **given)


def record(*calls: Call) -> Record:
    return make_record("r", [*calls])


def test_a_rollout_is_counted_by_its_answers() -> None:
    refused = call(2, status="error", response_ids=None, logprobs=None)
    found = behaviour_of(
        record(call(0, tools=2), call(1, "12", finish_reason="length"), refused),
        tools=ToolRuns(ran=2, failed=1),
    )
    assert (found.turns, found.tool_calls, found.tool_failures, found.answers) == (2, 2, 1, 2)
    assert (found.answer_tokens, found.cut, found.surprise, found.sampled_tokens) == (6, 1, 4.0, 6)
    assert behaviour_of(record(call(0, tools=1))).tool_failures is None, "no run of a tool is on record"
    assert behaviour_of(record(call(0)), tools=ToolRuns(ran=3)).tool_calls == 3, "asked for in a text"


def test_the_calls_of_a_frozen_policy_are_no_behaviour() -> None:
    judge = call(1, "fine", policy="judge")
    assert behaviour_of(record(call(0, "a"), judge), {"policy"}) == behaviour_of(
        record(call(0, "a")), {"policy"}
    )
    assert behaviour_of(record(judge), {"policy"}).answers == 0


def test_action_sequences_are_the_same_if_texts_and_tool_calls_are() -> None:
    def actions(*calls: Call) -> str:
        return behaviour_of(record(*calls)).actions

    assert actions(call(0, tools=1), call(1, "a  b")) == actions(call(0, tools=1), call(1, "a b"))
    different = [(call(0, "a"),), (call(0, "b"),), (call(0, "a", tools=1),), (call(0, "a"), call(1, "a"))]
    assert len({actions(*calls) for calls in different}) == 4


def rollout(name: str, task: int, actions: str, reward: float | None = 1.0, **of: Any) -> Seen:
    given: dict[str, Any] = {"turns": 1, "answers": 1, "answer_tokens": 4, **of}
    did = Behaviour(actions=actions, **given)
    return Seen(rollout=name, group=f"g{task}", task=f"t{task}", reward=reward, behaviour=did)


def test_a_step_has_means_shares_and_what_is_distinct() -> None:
    step = [rollout(f"r{n}", n // 2, "same" if n < 6 else f"own {n}", n % 2) for n in range(8)]
    step.append(rollout("silent", 0, "", None, answers=0, turns=0))
    found = step_metrics(step)
    assert found["behaviour/turns"] == 1 and found["behaviour/answer_tokens"] == 4
    assert found["behaviour/distinct"] == 3 / 8 and found["behaviour/distinct_in_group"] == (3 * 0.5 + 1) / 4
    assert found["behaviour/commonest"] == 6 / 8
    assert (found["reward_min"], found["reward_max"]) == (0, 1)
    assert "behaviour/tool_failures" not in found and "entropy" not in found, "missing is not 0"
    ran = rollout("r", 0, "a", tool_calls=2, tool_failures=1, tools_ran=4, surprise=3.0, sampled_tokens=6)
    found = step_metrics([ran])
    assert found["behaviour/tool_failures"] == 0.25 and found["entropy"] == 0.5
    assert "behaviour/commonest" not in found, "of one task"


# ------------------------------------------------------------------------------------------------- alarms
def raised(series: list[dict[str, float]]) -> dict[str, int]:
    """Kind → after how many steps of a run its alarm is raised."""
    found: dict[str, int] = {}
    for n in range(1, len(series) + 1):
        for alarm in alarms(dict(enumerate(series[:n]))):
            found.setdefault(alarm.kind, n)
    return found


@pytest.mark.parametrize("name", sorted(SERIES))
def test_real_runs_raise_what_their_reward_asks_for(name: str) -> None:
    kind = name.partition("-")[0]
    found = raised(SERIES[name])
    assert (kind in found) if kind in KINDS else not found, found


def series(reward: list[float], **metrics: list[float]) -> dict[int, dict[str, float]]:
    names = {name: name.replace("__", "/") for name in metrics}
    return {
        n: {"reward_mean": value, **{names[name]: of[n] for name, of in metrics.items()}}
        for n, value in enumerate(reward)
    }


RISING = [0.1, 0.2, 0.1, 0.2, 0.1, 0.8, 0.9, 0.8, 0.9, 0.8]
FLAT = [0.5, 0.4, 0.5, 0.6, 0.5] * 2
NO_MORE, SAME = [1.0] * 5 + [0.1] * 5, [1.0] * 10


def test_an_alarm_needs_the_reward_and_the_figure_and_two_windows() -> None:
    (alarm,) = alarms(series(RISING, behaviour__tool_calls=NO_MORE))
    assert alarm.kind == "tools" and (alarm.first, alarm.last) == ([1, 5], [6, 10])
    assert alarm.figures["behaviour/tool_calls"] == [1.0, pytest.approx(0.1)]
    alarm.rollouts = ["ro-a", "ro-b"]
    assert "tool calls a rollout 1 → 0.1 (steps 1–5 and 6–10); look at ro-a and ro-b" in alarm.text()
    assert not alarms(series(FLAT, behaviour__tool_calls=NO_MORE)), "the reward does not rise"
    assert not alarms(series(RISING, behaviour__tool_calls=SAME))
    assert not alarms(series(RISING[1:], behaviour__tool_calls=NO_MORE[1:])), f"fewer than {2 * WINDOW} steps"


def test_a_flat_reward_is_no_alarm_where_nothing_is_left_to_gain() -> None:
    falling = [1.0] * 5 + [0.2] * 5
    (alarm,) = alarms(series(FLAT, entropy=falling))
    assert alarm.kind == "entropy"
    high = [0.97, 0.95, 0.96, 0.98, 0.97] * 2
    bounds = {"reward_min": [0.0] * 10, "reward_max": [1.0] * 10}
    assert not alarms(series(high, entropy=falling, **bounds))
    constant = {"reward_min": [1.0] * 10, "reward_max": [1.0] * 10}
    assert alarms(series([1.0] * 10, entropy=falling, **constant)), "a reward that tells nothing apart"
    assert not alarms(series(RISING, entropy=falling))


def test_the_two_rollouts_show_it() -> None:
    first = [rollout("a", 0, "x", 0.0, tool_calls=1), rollout("b", 1, "y", 1.0, tool_calls=2)]
    last = [rollout("c", 0, "z", 0.0), rollout("d", 1, "z", 1.0), rollout("e", 2, "x", 1.0, tool_calls=1)]
    assert evidence("tools", first, last) == ["b", "d"]
    assert evidence("collapse", first, last) == ["b", "d"]
    assert evidence("tools", first, []) == ["b"]


def test_alarms_come_back_from_a_record_with_what_is_beside_them() -> None:
    (alarm,) = alarms(series(RISING, behaviour__tool_calls=NO_MORE))
    assert alarms_of({"alarms": {"tools": {**alarm.model_dump(), "text": alarm.text()}}}) == [alarm]
    assert alarms_of({}) == []


# ---------------------------------------------------------------------------------------------- in a run
class Run:
    """A run as a watch sees it: records that are graded, batches that are edited, a store."""

    def __init__(self, store: SQLiteStore) -> None:
        self.store, self.said = store, list[str]()
        self.watch = BehaviourWatch(DEFAULT_FAILURE_TABLE)
        guards: list[Any] = []
        self.context: Any = SimpleNamespace(
            store=store, run_id="run", drivers={"policy": None}, group_rewards=(), guards=guards,
            say=self.said.append, plugins=SimpleNamespace(errors=Counter()), first_step=0,
            guarded=lambda: {one.name: said for one in self.context.guards if (said := one.summary())},
        )  # fmt: skip

    async def step(self, step: int, records: list[Record], reward: float) -> Batch:
        """Make a step as a run does, its report and fingerprints included."""
        graded = await self.context.group_rewards[-1].grade(records)
        assert graded is records
        ledgers = [Ledger(one.rollout.rollout_id) for one in records]
        batch = await self.watch.edit(step, Batch(rows=[], ledgers=ledgers, metrics={"reward_mean": reward}))
        report = StepReport(
            run_id="run", step=step, policy="policy", policy_version=step + 1, metrics=batch.metrics
        )
        of: Any = {"run_id": "run", "step": step, "policy": "policy", "version": step}
        await self.store.add_step(report, [fingerprint_record(one, **of) for one in records])
        return batch


def step_of(step: int, tools: int) -> list[Record]:
    """The records of a step: four tasks, one of whose rollouts failed without an answer."""
    found = []
    for task in range(4):
        name = f"ro-{step}-{task}"
        one = call(0, f"{step} {task}", tools if task < 3 else 0)
        one.rollout_id, one.call_id = name, f"{name}-c"
        found.append(make_record(name, [one], 0.5, group=f"g{step}-{task}", task_id=f"t{task}"))
    return found


async def test_a_run_raises_an_alarm_once_says_it_and_records_it() -> None:
    store = SQLiteStore(":memory:")
    await store.add_run("run", {"run_id": "run"})
    for step in range(13):  # the rollouts that evidence is looked for in are those of the store
        for one in step_of(step, 1):
            await store.enqueue_rollout("task", rollout_id=one.rollout.rollout_id, run_id="run")
    run = Run(store)
    async with run.watch.open(run.context):
        for step in range(12):
            tools, reward = (1, 0.1 + 0.01 * (step % 2)) if step < 5 else (0, 0.9 + 0.01 * (step % 2))
            batch = await run.step(step, step_of(step, tools), reward)
            assert batch.metrics["behaviour/tool_calls"] == 0.75 * tools
    (said,) = run.said
    assert said.startswith("ALARM after step 10: the reward rises while tools die out: reward 0.104 → 0.906")
    (recorded,) = await store.query_runs()
    (alarm,) = alarms_of(recorded)
    assert (alarm.kind, alarm.first, alarm.last) == ("tools", [1, 5], [6, 10])
    assert alarm.rollouts[-1].startswith("ro-9-") and recorded["alarms"]["tools"]["text"] == alarm.text()

    again = Run(store)  # resumed after step 11: it is not raised again
    async with again.watch.open(again.context):
        await again.step(11, step_of(11, 0), 0.9)
    assert not again.said and again.context.guarded()["alarms"].keys() == {"tools"}
    early = Run(store)  # resumed after step 8: the steps that raised it are made again
    async with early.watch.open(early.context):
        await early.step(8, step_of(8, 0), 0.9)
    assert (await store.query_runs())[0]["alarms"] == {}
    await store.close()


def test_only_a_run_that_trains_and_that_somebody_is_told_of_is_watched() -> None:
    def asked(**fields: Any) -> Any:
        return agl_batch_edits(from_fields({"policy": "p", "steps": 1, **fields}, plugins=plugins()))

    assert isinstance(asked(), BehaviourWatch)
    assert asked(steps=0) is None and asked(trackers=[]) is None, "an evaluation; a probe of `agl doctor`"


async def test_an_error_of_the_watch_costs_figures_and_never_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = SQLiteStore(":memory:")
    run = Run(store)
    await store.close()
    async with run.watch.open(run.context):
        records = step_of(0, 1)
        assert await run.watch.grade(records) is records
        assert run.context.plugins.errors == {"behaviour": 1}, "the tools that ran"
        batch = Batch(rows=[], ledgers=[Ledger("ro-0-0")], metrics={"reward_mean": 1.0})
        assert (await run.watch.edit(0, batch)).metrics == {"reward_mean": 1.0}, "nor what was before"
    assert run.context.plugins.errors == {"behaviour": 2} and "the run goes on" in caplog.text


async def test_alarms_and_behaviour_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (alarm,) = alarms(series(RISING, behaviour__tool_calls=NO_MORE))
    folder = await make_run(tmp_path, info={"alarms": {"tools": alarm.model_dump()}})
    look = await Watcher(str(folder), plugins()).look()
    assert look.runs[0].alarms == [alarm]
    assert look.detail is not None
    look.detail.behaviour = shown_figures({"behaviour/turns": 2.0, "behaviour/cut": 0.25, "loss": 1.0})
    console = Console(width=110, file=io.StringIO())
    console.print(screen(look))
    assert isinstance(console.file, io.StringIO)
    shown = " ".join(console.file.getvalue().split())
    assert "the reward rises while tools die out" in shown and "turns 2 · cut 0.25" in shown
    _show(look.runs, None)
    assert "alarm" in (out := capsys.readouterr().out) and "tools die out" in out
    async with open_run(str(folder), plugins=plugins()) as run:
        page = await list_rollouts(run)
    assert page.lines[0].behaviour is not None and page.lines[0].behaviour.turns == 2
    with run_log(tmp_path / "log", None) as log:
        log.finish({"alarms": {"tools": alarm.model_dump()}})
    assert "WARNING alarm: the reward rises while tools die out" in (tmp_path / "log" / NAME).read_text()
