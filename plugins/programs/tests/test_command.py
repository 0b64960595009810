"""``agl run``: the program's streams, signals and exit status are its own; the summary is on stderr."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agl_programs.run_view import show
from agl_programs.summary import Summary
from agl_testing import ScriptedModelServer
from marks import sampled
from rich.console import Console
from typer.testing import CliRunner

from agentlightning import cli

AGL = [sys.executable, "-c", "from _agl_main import main; main()"]
ASK = "OpenAI().chat.completions.create(model='m', messages=[dict(role='user', content='hi')])"
CALL = f"from openai import OpenAI; {ASK}"
PLAIN = """
import json, os, urllib.request
body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
head = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(url, body, head))
"""
"""A call without an SDK: a program that starts at once."""
WAIT = 240


@pytest.fixture
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer() as one:
        yield one


def arguments(server: ScriptedModelServer, *options: str, code: str) -> list[str]:
    engine = ["--upstream", server.url, "--model", server.model]
    return [*AGL, "run", *engine, *options, "--", sys.executable, "-c", textwrap.dedent(code)]


def agl_run(
    folder: Path, server: ScriptedModelServer, *options: str, code: str, **other: Any
) -> subprocess.CompletedProcess[str]:
    command = arguments(server, *options, code=code)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WAIT, **other)


def summary(told: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(told.stderr.splitlines()[-1])
    return found


@pytest.mark.slow
def test_streams_and_status_are_the_programs(tmp_path: Path, server: ScriptedModelServer) -> None:
    code = f"""
        import sys
        {CALL}
        print(sys.stdin.read().upper(), end="")
        print("err", file=sys.stderr)
        sys.exit(5)
    """
    told = agl_run(tmp_path, server, "--json", code=code, input="what was typed")
    assert told.returncode == 5 and told.stdout == "WHAT WAS TYPED" and "err\n" in told.stderr
    found = summary(told)
    assert found["verdicts"] == {"exact": 1} and found["exit_codes"] == [5]
    assert Path(found["store"]).is_file() and Path(found["folder"]).parent == tmp_path / "runs"


@pytest.mark.slow
def test_a_process_that_is_left_behind_cannot_write_over_the_summary(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    code = """
        import os, time
        if not os.fork():
            while not os.path.exists("ended"):
                time.sleep(0.01)
            os.write(2, b"late\\n")
    """
    said = tmp_path / "said"
    command = arguments(server, "--json", "--output", ".", "--run-id", "mine", code=code)
    with said.open("w") as stderr:
        told = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=stderr, timeout=WAIT)
    assert told.returncode == 0
    (tmp_path / "ended").touch()
    while not said.read_text().endswith("late\n"):
        time.sleep(0.01)
    kept = json.loads((tmp_path / "mine" / "summary.json").read_text())
    written = json.loads(said.read_text().splitlines()[-2])
    assert kept == {**written, "total_seconds": written["seconds"]} and kept["run_id"] == "mine"


@pytest.mark.slow
def test_the_summary_says_what_was_captured_and_where(
    tmp_path: Path, server: ScriptedModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"import agentlightning as agl\nwith agl.tagged(agent='poet'): {CALL}\nagl.emit_reward(0.5)"
    told = agl_run(tmp_path, server, "--run-id", "mine", code=code)
    assert told.returncode == 0 and told.stdout == "", told.stderr
    for words in ("mine", "1 succeeded", "1 exact", "1 poet", "0.5", "agl trace ro-"):
        assert words in told.stderr
    rollout = next(line for line in told.stderr.splitlines() if "agl trace" in line).split()[3]
    monkeypatch.chdir(tmp_path)
    trace = CliRunner().invoke(cli.app(), ["trace", rollout, "--json"])
    kinds = [node["kind"] for node in json.loads(trace.stdout)["attempts"][0]["roots"]]
    assert sorted(kinds) == ["call", "reward"]
    runs = CliRunner().invoke(cli.app(), ["runs", "--json"])
    line = json.loads(runs.stdout)
    assert (line["run"], line["status"]) == ("mine", "finished")
    again = agl_run(tmp_path, server, "--run-id", "mine", code="")
    assert again.returncode == 2 and "mine exists" in again.stderr


@pytest.mark.slow
def test_several_processes_at_once(tmp_path: Path, server: ScriptedModelServer) -> None:
    told = agl_run(tmp_path, server, "--times", "16", "--concurrency", "4", "--json", code=PLAIN)
    found = summary(told)
    assert told.returncode == 0 and found["verdicts"] == {"gateway-only": 16}
    assert len(set(found["rollouts"])) == 16 and found["statuses"] == {"succeeded": 16}


@pytest.mark.slow
def test_of_several_one_that_fails_is_in_the_status(tmp_path: Path, server: ScriptedModelServer) -> None:
    (tmp_path / "t.jsonl").write_text("0\n3\n")
    code = "import json, os, sys; sys.exit(json.loads(os.environ['AGL_TASK']))"
    told = agl_run(tmp_path, server, "--tasks", "t.jsonl", "--json", code=code)
    assert told.returncode == 1 and summary(told)["exit_codes"] == [0, 3]


ENGINE = ["--upstream", "http://127.0.0.1:1/v1", "--model", "m"]


@pytest.mark.parametrize(
    ("given", "code", "said"),
    sampled(
        [
            ([*ENGINE, "--", "no-such-program"], 127, "no-such-program"),
            (["--", "true"], 2, "name the model"),
            ([*ENGINE, "--tag", "x", "--", "true"], 2, "key=value"),
            (["--upstream", "nonsense", "--model", "m", "--", "true"], 2, "url is 'nonsense'"),
        ],
        0,
        1,
    ),
)
def test_errors_are_one_line(tmp_path: Path, given: list[str], code: int, said: str) -> None:
    told = subprocess.run([*AGL, "run", *given], cwd=tmp_path, capture_output=True, text=True, timeout=WAIT)
    assert told.returncode == code and said in told.stderr
    assert "Traceback" not in told.stderr and told.stdout == ""


@pytest.mark.slow
def test_a_timeout_is_status_124(tmp_path: Path, server: ScriptedModelServer) -> None:
    told = agl_run(tmp_path, server, "--timeout", "1", "--json", code="import signal; signal.pause()")
    assert told.returncode == 124 and summary(told)["exit_codes"] == [None]
    assert "timeout" in next(iter(summary(told)["failures"]))


def as_in_a_terminal() -> None:
    """In a child: no signal is ignored, as it is where tests run in the background or under ``nohup``."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize("number", sampled([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1], 1))
@pytest.mark.slow
def test_signals_are_passed_on(tmp_path: Path, server: ScriptedModelServer, number: signal.Signals) -> None:
    code = f"""
        import signal, sys
        def end(number, frame):
            {ASK}
            sys.exit(40 + number)
        from openai import OpenAI
        signal.signal({int(number)}, end)
        print("ready", flush=True)
        signal.pause()
    """
    process = subprocess.Popen(
        arguments(server, "--json", code=code),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # no terminal that would send it to both
        preexec_fn=as_in_a_terminal,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT)
    found = json.loads(err.splitlines()[-1])
    assert process.returncode == 40 + number and found["verdicts"] == {"exact": 1}


@pytest.mark.slow
def test_a_signal_that_kills_is_the_status_and_named(tmp_path: Path, server: ScriptedModelServer) -> None:
    told = agl_run(
        tmp_path, server, "--json", code=f"{CALL}; import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    )
    found = summary(told)
    assert told.returncode == 128 + signal.SIGSEGV and found["verdicts"] == {"exact": 1}
    assert "SIGSEGV" in next(iter(found["failures"]))


@pytest.mark.slow
def test_ctrl_c_at_a_terminal_arrives_once(tmp_path: Path, server: ScriptedModelServer) -> None:
    code = """
        import signal, sys
        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(1))
        print("isatty", sys.stdin.isatty(), flush=True)
        sys.stdin.readline()
        print("interrupts", len(seen), flush=True)
    """
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        as_in_a_terminal()
        command = arguments(server, code=code)
        os.execv(command[0], command)
    said = b""
    while b"isatty True" not in said:
        said += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    os.write(terminal, b"go on\n")
    while not said.partition(b"interrupts ")[2]:  # a terminal gives what it has
        said += os.read(terminal, 1024)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"interrupts 1" in said and os.waitstatus_to_exitcode(status) == 0


@pytest.mark.slow
def test_signals_that_are_ignored_stay_ignored(tmp_path: Path, server: ScriptedModelServer) -> None:
    """As under ``nohup``, and in the background of a shell's script."""
    code = "import signal; print(*(int(signal.getsignal(n) == signal.SIG_IGN) for n in (1, 2, 15)))"
    both = signal.SIGHUP, signal.SIGINT
    told = agl_run(
        tmp_path, server, code=code, preexec_fn=lambda: [signal.signal(n, signal.SIG_IGN) for n in both]
    )
    assert told.stdout.split() == ["1", "1", "0"], told.stderr


@pytest.mark.slow
def test_a_signal_to_us_ends_the_run_and_not_one_process(tmp_path: Path, server: ScriptedModelServer) -> None:
    (tmp_path / "tasks").write_text("1\n2\n3\n")
    code = "import signal; print('here', flush=True); signal.pause()"
    command = arguments(server, "--tasks", "tasks", "--json", code=code)
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT)
    assert process.returncode == 128 + signal.SIGTERM and out == ""
    told = json.loads(err.splitlines()[-1])
    assert told["exit_codes"] == [143] and any("2 of 3" in line for line in told["warnings"])


@pytest.mark.slow
def test_a_rollout_of_thousands_of_spans_is_summarised_and_the_status_stands(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    code = """
        import agentlightning as agl, sys
        for number in range(1_050):
            agl.emit_reward(1.0, name=f"note-{number}")
        sys.exit(7)
    """
    told = agl_run(tmp_path, server, "--json", code=code)
    assert told.returncode == 7, told.stderr
    assert len(summary(told)["rewards"]) == 1_050 and summary(told)["exit_codes"] == [7]


@pytest.mark.slow
def test_the_status_is_the_programs_where_the_summary_fails(
    tmp_path: Path, server: ScriptedModelServer
) -> None:
    code = """
        import pathlib, sqlite3, sys
        (file,) = pathlib.Path("runs").glob("*/store.sqlite")
        other = sqlite3.connect(file)
        fail = "BEGIN SELECT RAISE(FAIL, 'disk full'); END"
        other.execute(f"CREATE TRIGGER a BEFORE UPDATE ON runs {fail}")
        other.commit()
        sys.exit(9)
    """
    told = agl_run(tmp_path, server, code=code)
    assert told.returncode == 9 and "disk full" in told.stderr and "Traceback" not in told.stderr


def test_printed_commands_quote_their_paths(capsys: pytest.CaptureFixture[str]) -> None:
    show(Summary(run_id="r", store="my runs/s.sqlite", folder="my runs/it's", rollouts=["ro-1"]), Console())
    line = next(line for line in capsys.readouterr().out.splitlines() if "agl trace" in line)
    assert shlex.split(line)[-4:] == ["trace", "ro-1", "--run", "my runs/it's"]


POSTED = """
import json, os, urllib.request
head = {"Authorization": "Bearer " + os.environ["AGL_KEY"], "Content-Type": "application/json"}
chat = {"model": "auto", "messages": [{"role": "user", "content": "hi"}]}
reward = {"event_type": "reward", "data": {"value": 0.25}}
asked = os.environ["AGL_OPENAI_BASE_URL"] + "/chat/completions"
for url, body in ((asked, chat), (os.environ["AGL_EVENT_URL"], reward)):
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head))
"""


@pytest.mark.slow
def test_a_program_for_1_0_posts_its_reward(tmp_path: Path, server: ScriptedModelServer) -> None:
    found = summary(agl_run(tmp_path, server, "--json", code=POSTED))
    assert found["rewards"] == [0.25] and found["statuses"] == {"succeeded": 1} and found["calls"] == 1
