"""``agl runs``, ``trace``, ``explain`` and ``verify`` at the terminal: exit status, last lines, panels."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from core.audit.runs import RUN, edit_reward, make_run

from agentlightning import cli

Agl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def agl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Agl:
    """Runs a command as a person does; (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["agl", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return asyncio.run(make_run(tmp_path / "runs"))


def one_line(text: str) -> str:
    """Without the frames of panels and their line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", text).split())


def test_verify(agl: Agl, folder: Path) -> None:
    assert agl("verify", RUN) == (
        0,
        "verified: 2 steps, 8 rollouts, 7 rows, 28 tokens: every row, advantage and weight equals what was "
        "trained\nparameters not compared: no step logged their digest (driver option deterministic)\n",
        "",
    )
    status, out, _ = agl("verify", RUN, "--step", "1", "--json")
    found = json.loads(out)
    assert status == 0 and found["equal"] and (found["run"], found["steps"], found["rows"]) == (RUN, 1, 3)


def test_verify_names_the_edited_reward(agl: Agl, folder: Path) -> None:
    asyncio.run(edit_reward(folder, "ro-0-2", 0.0))
    status, out, _ = agl("verify", "20260102")
    assert status == 1
    assert out.splitlines()[:2] == [
        f"different: 1 difference in {RUN} (2 steps, 8 rollouts, 7 rows, 28 tokens)",
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
    (attempt,) = json.loads(agl("trace", "ro-0-0", "--json")[1])["attempts"]
    assert [c["kind"] for c in attempt["roots"][0]["children"]] == ["call", "tool", "call"]


def test_explain(agl: Agl, folder: Path) -> None:
    found: dict[str, Any] = json.loads(agl("explain", "ro-0-0", "--json")[1])
    call = found["calls"][1]["id"]
    status, out, _ = agl("explain", f"{call}:0")
    assert status == 0
    shown = one_line(out)
    for expected in (
        "step 0, built for policy version 0: as it was trained",
        "token 0 of 2 in the response, id 6",
        "logprob then -0.500000, by policy version 0",
        "weight × advantage = 0.0441941: made likelier",
        "baseline 0.5 by group over",
        "ro-0-0 1 ← this one ro-0-1 0",
        "advantage 0.707106 = (1 − 0.5) / 0.707108 (std + 1e-6)",
        "weight 0.0625 = 1 / (4 rollouts × 4 tokens of its rollout) (normalise rollout)",
        "row ro-0-0/0, 7 tokens; the response is [5, 7) position 5",
        f"extends {call[:-3]}0.0: its prompt begins with that call's prompt and answer, id for id",
    ):
        assert expected in shown
    rollout = one_line(agl("explain", "ro-1-3")[1])
    for expected in (
        "failure agent-raised: the agent's code raised an exception → left out",
        "none no reward was emitted; missing is not zero",
        "ro-1-2 reward 1 ro-1-3 agent-raised ← this one",
        "ledger 2 made = 0 trained + 2 failed-rollout",
    ):
        assert expected in rollout
    left_out = one_line(
        agl("explain", json.loads(agl("explain", "ro-1-3", "--json")[1])["calls"][0]["id"])[1]
    )
    assert (
        "left out failed-rollout: its rollout failed, and the failure table leaves such a rollout" in left_out
    )
