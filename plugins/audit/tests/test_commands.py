"""``agl runs``, ``trace``, ``explain`` and ``verify`` at the terminal: exit status, last lines, panels."""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from contract.runs import RAISED, RUN, calls_of, edit_reward, make_run

from agentlightning import semconv
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Rollout, Span
from plugins.audit.tests.conftest import Agl


def one_line(text: str) -> str:
    """Without the frames of panels and their line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def test_verify(agl: Agl, folder: Path) -> None:
    status, out, err = agl("verify", RUN)
    first, chain, parameters = out.splitlines()
    assert (status, err) == (0, "")
    assert first == (
        "verified: 2 steps, 8 rollouts, 7 rows, 28 tokens, 1 evaluation, 0 checkpoints: everything that can "
        "be made again equals what was logged"
    )
    assert re.fullmatch(r"chain: 5 links, head [0-9a-f]{64}", chain)
    assert parameters == "parameters not compared: no step logged their digest (driver option deterministic)"
    status, out, _ = agl("verify", RUN, "--step", "1", "--json")
    found = json.loads(out)
    assert status == 0 and found["equal"] and (found["run"], found["steps"], found["rows"]) == (RUN, 1, 3)


def test_verify_names_the_edited_reward(agl: Agl, folder: Path) -> None:
    asyncio.run(edit_reward(folder, "ro-0-2", 0.0))
    status, out, _ = agl("verify", "20260102")
    assert status == 1
    assert out.splitlines()[:2] == [
        f"different: 1 difference in {RUN} (2 steps, 8 rollouts, 7 rows, 28 tokens, 1 evaluation, "
        "0 checkpoints)",
        "✗ step 0, rollout ro-0-2: reward was 1.0 when it was trained, the store says 0.0 "
        "(edited after training)",
    ]
    status, out, _ = agl("verify", str(folder), "--json")
    found = json.loads(out.splitlines()[-1])
    assert status == 1 and found["equal"] is False
    first = found["differences"][0]
    assert (first["step"], first["rollout_id"], first["kind"], first["then"], first["now"]) == (
        0, "ro-0-2", "reward", 1.0, 0.0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "nothing"], "agl: runs/ holds no run 'nothing': " + RUN),
        (["verify", RUN, "--step", "9"], f"agl: run {RUN} has no step 9; it has 0 to 1"),
        (["explain", "nothing"], "agl: nothing: no such rollout, attempt, call or token in runs/"),
        (["explain", "ro-0-0", "--run", "2027"], "agl: runs/ holds no run '2027'"),
        (["explain", "ro-0-0", "--store", "none"], "agl: none: there is no such store"),
        (["trace", "nothing"], "agl: nothing: no such rollout"),
        (["runs", "nowhere"], "agl: nowhere: there is no such folder, file or store"),
    ],
)
def test_what_a_person_can_mend_is_one_line(
    agl: Agl, folder: Path, arguments: list[str], message: str
) -> None:
    status, out, err = agl(*arguments)
    assert status == 2 and out == "" and err.startswith(message) and err.count("\n") == 1


def test_rollouts(agl: Agl, folder: Path) -> None:
    status, out, _ = agl("rollouts", RUN)
    assert status == 0 and "train/0" in out and "ro-0-0" in out and "ro-eval" in out
    trace, explain = out.splitlines()[-2:]
    for line in (trace, explain):
        status, out, _ = agl(*line.split()[1:])
        assert status == 0 and out
    status, out, _ = agl("rollouts", RUN, "--json", "--limit", "2")
    first, second = map(json.loads, out.splitlines())
    assert (first["rollout"], second["rollout"]) == ("ro-0-0", "ro-0-1") and first["calls"][0]["call"]
    _, out, _ = agl("rollouts", RUN, "--limit", "2", "--calls")
    assert first["calls"][1]["call"] in out
    assert out.splitlines()[-1] == f"more: agl rollouts {RUN} --after ro-0-1 (and the same filters)"
    assert agl("rollouts", RUN, "--task", "nothing")[1] == "no such rollouts\n"
    status, _, err = agl("rollouts", RUN, "--reward", "low")
    assert status == 2 and err.startswith("agl: reward 'low': write e.g. 1, '<0.5'")
    assert agl("rollouts", RUN, "--mode", "test")[2] == "agl: --mode test: it is train or val\n"


def test_runs_takes_a_run_and_points_to_its_rollouts(agl: Agl, folder: Path, tmp_path: Path) -> None:
    for named in (RUN, RUN[:8], f"runs/{RUN}", f"runs/{RUN}/store.sqlite"):
        status, out, _ = agl("runs", named)
        assert status == 0 and out.splitlines()[-1] == f"what a run did: agl rollouts {RUN}"
    asyncio.run(make_run(tmp_path / "elsewhere"))
    _, out, _ = agl("runs", "elsewhere")
    words = out.splitlines()[-1].removeprefix("what a run did: agl ").split()
    assert agl(*words)[0] == 0
    asyncio.run(make_run(folder.parent, name="20260103-other"))
    assert agl("runs")[1].splitlines()[-1] == "what a run did: agl rollouts RUN"
    assert agl("runs", "20260103")[1].splitlines()[-1] == "what a run did: agl rollouts 20260103-other"
    assert "is the beginning of 2 runs" in agl("runs", "2026")[2]


def test_runs(agl: Agl, folder: Path) -> None:
    broken = folder.parent / "20250101-broken"
    broken.mkdir()
    (broken / "store.sqlite").write_bytes(b"no database, but long enough to be read as one" * 40)
    status, out, _ = agl("runs")
    assert status == 0
    assert RUN in out and "0.250 → 0.750" in out and "finished" in out and "2/2" in out
    assert "unreadable 20250101-broken: " in out
    status, out, _ = agl("runs", "runs", "--json")
    first, second = map(json.loads, out.splitlines())
    assert first["run"] == RUN and first["status"] == "finished" and second["status"] == "unreadable"
    (folder.parent.parent / "empty").mkdir()
    assert agl("runs", "empty")[1] == "no runs in empty\n"


def test_trace(agl: Agl, folder: Path) -> None:
    status, out, _ = agl("trace", "ro-0-0")
    assert status == 0
    shown = re.sub(r"at-\w+", "at-1", out)
    assert [line[:14].rstrip() for line in shown.splitlines()[1:3]] == ["├── ● solver", "│   ├── ◆ solv"]
    assert '⚒ calculate({"e": "2+3"}) → 5' in shown and "★ reward 1.0  of rollout" in shown
    assert "policy v0  2 → 2 tokens  exact" in shown
    failed = agl("trace", "ro-1-3", "--all")[1]
    assert "failed" in failed and "agent-raised: RuntimeError: the tool server is gone" in failed
    assert f"{RAISED}\nTraceback (most recent call last): …" in failed
    (attempt,) = json.loads(agl("trace", "ro-0-0", "--json")[1])["attempts"]
    assert [c["kind"] for c in attempt["roots"][0]["children"]] == ["call", "tool", "call"]


def test_a_run_is_explained_by_the_last_rollout_that_it_trained(agl: Agl, folder: Path) -> None:
    status, out, _ = agl("explain", RUN, "--json")
    found = json.loads(out)
    assert (status, found["what"], found["step"]["step"]) == (0, "rollout", 1) and found["rows"]


def test_explain(agl: Agl, folder: Path) -> None:
    found: dict[str, Any] = json.loads(agl("explain", "ro-0-0", "--json")[1])
    call = found["calls"][1]["id"]
    status, out, _ = agl("explain", f"{call}:0")
    assert status == 0
    shown = one_line(out)
    for expected in (
        "step 0, built for policy version 0: as it was trained",
        "token 1st of 2 in the response (:0), id 6",
        "logprob then -0.500000, by policy version 0",
        "policy gradient weight × advantage = 0.0441941 at ratio 1: makes it likelier clip does not act",
        "in sum made likelier",
        "baseline 0.5 by group over",
        "ro-0-0 1 ← this one ro-0-1 0",
        "advantage 0.707106 = (1 − 0.5) / 0.707108 (std + 1e-6)",
        "weight 0.0625 = 1 / (4 rollouts × 4 tokens of its rollout) (aggregation: rollout)",
        "row ro-0-0/0, 7 tokens; the response is [5, 7) position 5",
        f"extends {call[:-3]}0.0: its prompt begins with that call's prompt and answer, id for id",
    ):
        assert expected in shown
    rollout = one_line(agl("explain", "ro-1-3")[1])
    for expected in (
        "failure agent-raised: the agent's code raised an exception → left out",
        "none no reward was emitted; missing is not zero",
        "ro-1-2 reward 1 ro-1-3 agent-raised: left out ← this one",
        "ledger 2 made = 0 trained + 2 failed-rollout",
    ):
        assert expected in rollout
    left_out = one_line(
        agl("explain", json.loads(agl("explain", "ro-1-3", "--json")[1])["calls"][0]["id"])[1]
    )
    assert (
        "left out failed-rollout: its rollout failed, and the failure table leaves such a rollout" in left_out
    )


ODD = "[/] [red]x[/red] [bold :smile: \\[dim]"
"""Text that rich would read as markup, or stumble over."""


def test_what_a_model_said_is_never_markup(agl: Agl, tmp_path: Path) -> None:
    folder = asyncio.run(_odd_run(tmp_path / "runs"))
    rollout = json.loads(agl("explain", "ro-odd", "--json")[1])
    call = rollout["calls"][0]["id"]
    seen: dict[str, str] = {}
    for command in (["explain", "ro-odd"], ["explain", call], ["explain", f"{call}:0"], ["trace", "ro-odd"],
                    ["runs"],
                    ["runs", str(folder)]):  # fmt: skip
        status, out, err = agl(*command)
        assert status == 0 and err == "", command
        seen[command[0]] = seen.get(command[0], "") + one_line(out).replace(" ", "")
    odd = ODD.replace(" ", "")
    assert seen["explain"].count(odd) >= 12  # task, group, agent, tags, model, messages, answer, reward, …
    assert seen["trace"].count(odd) >= 6 and odd.partition(":")[0] in seen["runs"]


KEY = "sk-0123456789"


async def _odd_run(root: Path) -> Path:
    """A run in which every text that somebody else chose is odd."""
    folder = await make_run(root, info={"about": {"agent": ODD}})
    store = SQLiteStore(folder / "store.sqlite")
    rollout = Rollout(rollout_id="ro-odd", input={"q": ODD}, run_id=RUN, task_id=ODD, group_id=ODD)
    await store.enqueue_many_rollouts([rollout])
    lease = await store.dequeue_rollout("w", run_id=RUN)
    assert lease is not None
    attempt = lease.attempt.attempt_id
    call = calls_of("ro-odd", attempt, 0, 1.0)[0]
    call.tags = {"agent": ODD, ODD: ODD}
    call.model = call.policy = call.finish_reason = ODD
    call.sampling = {"temperature": 1.0, "stop": ODD}
    call.asked, call.edited = {ODD: ODD}, {"reasoning": ODD}
    call.request = {
        "messages": [{"role": ODD, "content": ODD}],
        "api_key": KEY,
        "extra_headers": {"Authorization": f"Bearer {KEY}"},
    }
    call.response = {"message": {"role": "assistant", "content": ODD}}
    call.logprobs = [float("nan"), -0.5]
    await store.add_calls([call])

    def span(name: str, **attributes: Any) -> Span:
        return Span(rollout_id="ro-odd", attempt_id=attempt, name=name, attributes=attributes, span_id=name,
                    status="error", status_message=ODD)  # fmt: skip

    tool = dict.fromkeys((semconv.TOOL_NAME, semconv.TOOL_CALL_ARGUMENTS, semconv.TOOL_CALL_RESULT), ODD)
    spans = [
        span(ODD),
        span("tool", **tool),
        span(semconv.REWARD_SPAN, **{semconv.REWARD_VALUE: 1.0, semconv.REWARD_NAME: ODD, "judge": ODD}),
        span(semconv.REWARD_SPAN, **{semconv.REWARD_VALUE: 1.0, semconv.REWARD_AGENT: ODD, ODD: math.inf}),
    ]  # fmt: skip
    failed = f"agent-raised: {ODD}"
    await store.update_attempt("ro-odd", attempt, AttemptStatus.FAILED, reason=failed, spans=spans)
    await store.close()
    return folder


def test_keys_in_a_request_are_never_shown(agl: Agl, tmp_path: Path) -> None:
    asyncio.run(_odd_run(tmp_path / "runs"))
    call = json.loads(agl("explain", "ro-odd", "--json")[1])["calls"][0]["id"]
    for what in (["explain", "ro-odd"], ["explain", call], ["trace", "ro-odd"], ["trace", "ro-odd", "--json"],
                 ["explain", f"{call}:0", "--json"]):  # fmt: skip
        assert KEY not in agl(*what)[1].replace("\n", "")


def test_json_is_json_whatever_was_emitted(agl: Agl, tmp_path: Path) -> None:
    asyncio.run(_odd_run(tmp_path / "runs"))

    def strict(text: str) -> Any:
        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        return json.loads(text, parse_constant=refuse)

    call = strict(agl("explain", "ro-odd", "--json")[1])["calls"][0]["id"]
    assert strict(agl("explain", f"{call}:0", "--json")[1])["token"]["logprob_then"] is None
    assert strict(agl("trace", "ro-odd", "--json")[1])["attempts"][0]["status"] == "failed"
    found = strict(agl("verify", RUN, "--json")[1])
    assert [d["kind"] for d in found["differences"]] == ["added"]  # by a hand that is not the run's


def test_logs(agl: Agl, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert agl("logs", RUN)[0] == 2 and "there is no log yet" in agl("logs", RUN)[2]
    (folder / "training.log").write_text(
        "2026-01-31 12:00:00 r INFO one\n2026-01-31 12:00:01 r ERROR two\n    more\n"
    )
    assert agl("logs", RUN, "-n", "1")[1] == "2026-01-31 12:00:01 r ERROR two\n    more\n"
    line = json.loads(agl("logs", RUN, "-n", "1", "--json")[1])
    assert line == {"time": "2026-01-31 12:00:01", "run": "r", "level": "ERROR", "text": "two\n    more"}
    monkeypatch.setenv("AGL_LOG", str(folder / "training.log"))
    assert agl("logs")[1].startswith("2026-01-31 12:00:00 r INFO one")
    assert "give either" in agl("logs", RUN, "--file", "x")[2]
    monkeypatch.setenv("AGL_LOG", "")
    assert "name a run" in agl("logs")[2]


def test_compare(agl: Agl, folder: Path, tmp_path: Path) -> None:
    asyncio.run(make_run(tmp_path / "runs", name="20270101-other", info={"seed": 7}))
    status, out, _ = agl("compare", RUN, "20270101")
    assert status == 0 and "held-out" in out and "training reward of 20270101-other: 2 steps" in out
    assert re.search(r"seed\s+│ 1\s+│ 7", out)
    found = json.loads(agl("compare", RUN, "20270101", "--json")[1])
    assert (found["first"], found["settings"]) == (RUN, {"seed": [1, 7]})
    assert "no setting differs" in agl("compare", RUN, RUN)[1]
    assert agl("compare", RUN, "nothing")[0] == 2


def test_only_the_named_command_is_imported() -> None:
    code = "import sys; from agentlightning.cli import app; app(['runs']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "agl_audit.commands.runs" in loaded and "agentlightning.cli.train" not in loaded
