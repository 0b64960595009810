"""``agl top``: one look and JSON for scripts, the screen, its keys, and a run that trains meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import threading
from pathlib import Path
from typing import Any

import pytest
from contract.runs import RUN, make_run
from rich.console import Console

import agentlightning as agl
from agentlightning import cli
from agl_audit.commands import top
from agl_audit.run_list import RunSummary
from agl_audit.watching import Look, Watcher

ROOT = Path(__file__).resolve().parents[3]


def text(found: Look) -> str:
    console = Console(width=110, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(top.screen(found))
    console.file.close()
    return console.export_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return asyncio.run(make_run(tmp_path / "runs"))


def said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["agl", "top", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    out = capsys.readouterr()
    return int(ended.value.code or 0), out.out, out.err


def test_once(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, _ = said(capsys, monkeypatch, "--once", "--every", "0.1")
    assert status == 0
    for part in (
        RUN,
        "agl top",
        "2/2",
        "8 succeeded, 1 failed",
        "0.0 /s",
        "agent-raised",
        "errors and counts",
    ):
        assert part in out, part


def test_once_as_json(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = said(capsys, monkeypatch, RUN[:8], "--once", "--json", "--every", "0.1")
    found = json.loads(out)
    assert status == 0 and found["selected"] == RUN and found["detail"]["calls_per_second"] == 0.0
    assert found["detail"]["rollouts"] == {"succeeded": 8, "failed": 1}


def test_no_such_run(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = said(capsys, monkeypatch, "nothing", "--once")
    assert status == 2 and "nothing" in err


def test_without_runs_the_screen_says_what_makes_one() -> None:
    assert "agl train" in text(Look(time=0.0, runs=[]))


async def test_what_agents_wrote_is_text(tmp_path: Path) -> None:
    await make_run(tmp_path, info={"about": {"agent": "[red]x[/red]"}})
    assert "[red]x[/red]" in text(await Watcher(str(tmp_path)).look())


@pytest.mark.parametrize(("key", "then"), [("j", 1), ("\x1b[B", 1), ("k", 0), ("\x1b[A", 0), ("x", 0)])
def test_keys_move_the_selection(key: str, then: int) -> None:
    runs = [RunSummary(run=name, store="s") for name in ("a", "b")]
    found = Look(time=0.0, runs=runs, selected="a")
    assert top._moved(found, key) == ("a", "b")[then]


async def test_keys_are_read_from_a_terminal_and_it_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    import termios

    ours, theirs = pty.openpty()
    with open(theirs, closefd=False) as file:
        monkeypatch.setattr("sys.stdin", file)
        before = termios.tcgetattr(theirs)
        with top._keys() as pressed:
            os.write(ours, b"q")
            assert await asyncio.wait_for(pressed.get(), 300) == "q"
        assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


@pytest.mark.slow
@pytest.mark.plugins
async def test_a_run_that_trains(tmp_path: Path) -> None:
    @agl.rollout
    async def solve(task: Any, llm: agl.LLM) -> float:
        from openai import AsyncOpenAI

        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            messages: Any = [{"role": "user", "content": task}]
            reply = await client.chat.completions.create(model=llm.model, messages=messages)
        return float(len(reply.choices[0].message.content or "") % 2)

    fast = {"threads": 1, "engine": "thread", "max_len": 160}
    trainer = agl.Trainer(
        "grpo", policy="tiny", steps=3, batch_size=2, options=fast, output=tmp_path, trackers=[]
    )
    thread = threading.Thread(target=trainer.fit, args=(solve, ["a", "b"], ["c"]), daemon=True)
    thread.start()
    watcher, looks = Watcher(str(tmp_path)), list[Look]()
    while thread.is_alive():
        if tmp_path.exists():
            looks.append(await watcher.look())
        await asyncio.sleep(0.05)
    looks.append(await watcher.look())
    states = [found.runs[0].status for found in looks if found.runs]
    steps = [found.runs[0].steps for found in looks if found.runs]
    assert states[0] == "running" and states[-1] == "finished" and steps == sorted(steps) and steps[-1] == 3
    assert any((found.detail and found.detail.calls_per_second) for found in looks)
    last = looks[-1].detail
    assert last is not None and len(last.rewards) == 3 and last.calls and "succeeded" in text(looks[-1])
