"""Ends of programs: by themselves, a signal, a timeout or a store that fails; and their records."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from agl_programs.attempts import run_all, run_one
from agl_programs.options import CannotStart, ProgramOptions
from agl_programs.session import open_session
from agl_programs.summary import summarise
from agl_testing import Reply, ScriptedModelServer
from marks import sampled

from agentlightning.types import AttemptStatus
from plugins.programs.tests.running import CALL, run, run_command


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer() as one:
        yield one


@pytest.mark.parametrize(
    ("end", "code", "reason"),
    sampled(
        [
            ("raise SystemExit(3)", 3, "exited with status 3"),
            ("raise ValueError('no')", 1, "exited with status 1"),
            ("import os; os._exit(7)", 7, "exited with status 7"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "signal 9 (SIGKILL)"),
            ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 143, "signal 15 (SIGTERM)"),
        ],
        0,
        3,
    ),
)
async def test_recorded_spans_survive_any_end(
    tmp_path: Path, server: ScriptedModelServer, end: str, code: int, reason: str
) -> None:
    outcome = await run(
        tmp_path, f"{CALL}\nask()\nimport agentlightning as agl\nagl.emit_reward(1)\n{end}", server
    )
    assert outcome.summary.exit_codes == [code]
    (attempt,) = outcome.attempts
    assert attempt.status is AttemptStatus.FAILED and reason in (attempt.reason or "")
    assert outcome.kinds == ["exact"] and outcome.summary.rewards == [1.0]
    assert outcome.summary.counts == {}


async def ended(pid: int) -> None:
    """Return when the process has ended: it has its signal, and the kernel ends it when it runs next."""
    status = Path(f"/proc/{pid}/stat")
    async with asyncio.timeout(300):
        while status.exists():
            with suppress(OSError):
                if status.read_text().split()[2] == "Z":
                    return
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_program_that_hangs_is_ended_with_its_children(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    source = f"""
import json, os, signal, subprocess, sys, urllib.request
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
print(child.pid, file=open({str(tmp_path / "pid")!r}, "w"), flush=True)
body = json.dumps({{"model": "any", "messages": [{{"role": "user", "content": "hi"}}]}}).encode()
head = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, head))
signal.pause()
"""
    for limit in (5.0, 40.0, 320.0):  # on a busy machine the call may come later than the first
        outcome = await run(tmp_path, source, server, timeout=limit)
        if outcome.kinds:
            break
    (attempt,) = outcome.attempts
    assert attempt.status is AttemptStatus.TIMEOUT and outcome.summary.exit_codes == [None]
    assert outcome.kinds == ["gateway-only"]
    await ended(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
async def test_a_process_that_is_left_behind_is_cut_off(tmp_path: Path, server: ScriptedModelServer) -> None:
    source = f"""{CALL}
import os, time
reader, writer = os.pipe()
if not os.fork():
    os.setsid(); ask("left behind"); os.write(writer, b"!"); time.sleep(30); os._exit(0)
os.read(reader, 1)
"""
    outcome = await run(tmp_path, source, server)
    assert outcome.summary.exit_codes == [0] and outcome.asked == ["left behind"]
    assert outcome.summary.counts["process-left-behind"] == 1


@pytest.mark.slow
async def test_a_stream_that_is_never_read_is_on_record(tmp_path: Path, server: ScriptedModelServer) -> None:
    source = f"""{CALL}
from openai import OpenAI
import os
stream = OpenAI().chat.completions.create(
    model="any", messages=[{{"role": "user", "content": "hi"}}], stream=True)
next(stream)
os._exit(0)
"""
    outcome = await run(tmp_path, source, server)
    assert len(outcome.kinds) == 1 and outcome.kinds != ["exact"]  # nobody read it to its end


@pytest.mark.slow
async def test_an_engine_that_fails_is_the_reason(tmp_path: Path) -> None:
    with ScriptedModelServer(lambda body: Reply(status=500, message="no")) as server:
        outcome = await run(tmp_path, f"{CALL}\nask()", server)
    assert outcome.summary.errors == 1 and outcome.summary.exit_codes == [1]
    assert (outcome.attempts[0].reason or "").startswith("model-5xx")


@pytest.mark.slow
async def test_a_store_that_cannot_write_is_named_and_the_exit_status_stands(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    options = ProgramOptions(
        command=[sys.executable, "-c", f"{CALL}\nask()"],
        upstream=server.url,
        model="scripted",
        output=tmp_path / "runs",
    ).check()
    async with open_session(options) as session:
        assert session.folder is not None

        def spoil() -> None:
            other = sqlite3.connect(session.folder / "store.sqlite")  # type: ignore[operator]
            other.executescript(
                "CREATE TRIGGER a BEFORE INSERT ON calls BEGIN SELECT RAISE(FAIL, 'disk full'); END;"
                "CREATE TRIGGER b BEFORE UPDATE ON attempts BEGIN SELECT RAISE(FAIL, 'disk full'); END;"
            )
            other.close()

        running = asyncio.create_task(run_one(session, 0))
        while not session.processes.running:
            await asyncio.sleep(0)
        spoil()
        ran = await running
        summary = await summarise(session, [ran], 0.0)
    assert ran.code == 1 and ran.rollout is None and "disk full" in (ran.store_error or "")
    assert summary.exit_codes == [1] and any("disk full" in line for line in summary.warnings)
    assert not [e for e in server.log if e.status != 200]  # the engine answered; the agent did not hear of it


async def test_a_run_that_is_cancelled_ends_its_programs(tmp_path: Path, server: ScriptedModelServer) -> None:
    options = ProgramOptions(
        command=[sys.executable, "-c", "import signal; signal.pause()"],
        upstream=server.url,
        model="scripted",
        output=tmp_path / "runs",
    ).check()
    async with open_session(options) as session:
        work = asyncio.create_task(run_one(session, 0))
        while not session.processes.running:
            await asyncio.sleep(0.01)
        (process,) = session.processes.running
        work.cancel()
        await asyncio.wait({work})
        assert process.returncode == -signal.SIGTERM
        assert not session.processes.running


@pytest.mark.parametrize(
    ("program", "code"), [("no-such-program", 127), ("/no/such", 127), (".", 126), ("./script", 126)]
)
def test_a_program_that_cannot_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script").write_text("#!/bin/sh\n")
    with pytest.raises(CannotStart) as refused:
        ProgramOptions(command=[program], upstream="http://127.0.0.1:1/v1", model="m").check()
    assert refused.value.code == code and program in str(refused.value)
    assert [p.name for p in tmp_path.iterdir()] == ["script"]


@pytest.mark.slow
async def test_a_program_that_closes_all_its_files_connects_again(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    source = f"{CALL}\nimport os\nask('before')\nos.closerange(3, 64)\nask('after', OpenAI())"
    outcome = await run_command(tmp_path, [sys.executable, "-c", source], server)
    assert outcome.summary.exit_codes == [0] and outcome.kinds == ["exact"] * 2


async def test_a_file_that_the_system_refuses_to_execute(tmp_path: Path, server: ScriptedModelServer) -> None:
    script = tmp_path / "script"
    script.write_text("echo no interpreter is named\n")
    script.chmod(0o755)
    outcome = await run_command(tmp_path, [str(script)], server)
    assert outcome.summary.exit_codes == [126]
    assert "cannot be executed" in (outcome.attempts[0].reason or "")


async def test_a_task_too_long_for_an_environment_has_its_own_message(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    outcome = await run(tmp_path, "pass", server, tasks=["x" * 200_000])
    assert outcome.summary.exit_codes == [126]
    assert "give it the path of a file" in (outcome.attempts[0].reason or "")


async def test_children_of_a_shell_end_with_it(tmp_path: Path, server: ScriptedModelServer) -> None:
    child = f"import os, signal; print(os.getpid(), file=open({str(tmp_path / 'pid')!r}, 'w'), flush=True)"
    line = f'{sys.executable} -S -c "{child}; signal.pause()"; true'
    options = ProgramOptions(
        command=["sh", "-c", line], upstream=server.url, model="scripted", output=tmp_path / "runs"
    ).check()
    async with open_session(options) as session:
        work = asyncio.create_task(run_one(session, 0))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
            await asyncio.sleep(0.01)
        work.cancel()
        await asyncio.wait({work})
    await ended(int((tmp_path / "pid").read_text()))


async def test_after_a_signal_no_other_process_is_started(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    options = ProgramOptions(
        command=[sys.executable, "-S", "-c", "import signal; signal.pause()"],
        tasks=[1, 2, 3],
        upstream=server.url,
        model="scripted",
        output=tmp_path / "runs",
    ).check()
    async with open_session(options) as session:
        work = asyncio.create_task(run_all(session))
        while not session.processes.running:
            await asyncio.sleep(0.01)
        session.processes.on_signal(signal.SIGTERM)
        ran = await work
        summary = await summarise(session, ran, 0.0)
    assert [one.code for one in ran] == [-signal.SIGTERM]
    assert any("2 of 3 processes were not started: SIGTERM arrived" in line for line in summary.warnings)


@pytest.mark.parametrize(("text", "said"), [("much", "not a finite number"), (None, "no file")])
async def test_a_reward_file_without_a_number(
    tmp_path: Path, server: ScriptedModelServer, text: str | None, said: str
) -> None:
    write = (
        "os.remove(p) if os.path.exists(p) else 0; os.mkfifo(p)"
        if text is None
        else f"open(p, 'w').write({text!r})"
    )
    outcome = await run(tmp_path, f"import os; p = os.environ['AGL_REWARD_FILE']; {write}", server)
    reason = outcome.attempts[0].reason or ""
    assert reason.startswith("bad-reward:") and said in reason
