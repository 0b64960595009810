"""The command line: messages a person can act on, and a last line a machine can read."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest
from marks import sampled
from typer.testing import CliRunner

from agentlightning import cli
from agentlightning._version import __version__
from agentlightning.algorithms.counters import NothingTrained
from agentlightning.algorithms.evaluate import NothingRewarded
from agentlightning.plugins.manager import load
from agentlightning.store import SQLiteStore
from agentlightning.types import UsageError

CONFIG = Path(__file__).parents[3] / "examples" / "calc_x" / "cpu.yaml"
AGL = [sys.executable, "-c", "from _agl_main import main; main()"]


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Ended]


@pytest.fixture
def agl(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["agl", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])  # a configuration may add to it
        monkeypatch.delitem(sys.modules, "agent_of_test_cli", raising=False)
        with pytest.raises(SystemExit) as ended:
            cli.main()
            raise SystemExit(0)
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, *capfd.readouterr())

    return run


def agl_process(*arguments: str) -> Ended:
    """Run a command as a user does."""
    environment = {k: v for k, v in os.environ.items() if k != "AGL_PLUGINS"}
    done = subprocess.run([*AGL, *arguments], capture_output=True, text=True, timeout=120, env=environment)
    return Ended(done.returncode, done.stdout, done.stderr)


def test_the_version_and_short_help(agl: Command) -> None:
    assert agl("--version").stdout == f"agl {__version__}\n"
    assert "Print the mean reward" in agl("eval", "-h").stdout


@pytest.mark.parametrize(
    ("option", "level"), [("-q", logging.ERROR), ("-v", logging.INFO), ("-vv", logging.DEBUG)]
)
def test_the_level_of_the_log(
    agl: Command, option: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):  # which restores the level of the root logger
        assert agl(option, "plugins").returncode == 0
        assert logging.getLogger().level == level


def test_a_shell_completes_options_of_a_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_AGL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "agl train --con")
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setattr(sys, "argv", ["agl"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "--config" in capfd.readouterr().out


def test_help_lists_every_command() -> None:
    result = CliRunner().invoke(cli.app(), ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in ("train", "eval", "store", "plugins"))


def test_only_the_named_command_is_imported() -> None:
    """The help and other commands start without the modules of all commands."""
    code = "import sys; from agentlightning.cli import app; app(['runs']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "agl_audit.commands.runs" in loaded and "agentlightning.cli.train" not in loaded
    listed = CliRunner().invoke(cli.app(["--help"]), ["--help"]).output
    assert all(f" {name} " in listed for name in load().commands)


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "-c", "none.yaml"], "agl: none.yaml: there is no such file"),
        (
            ["train", "-c", str(CONFIG), "--set", "training.stepz=3"],
            "training.stepz: Extra inputs are not permitted",
        ),
        (["train", "-c", str(CONFIG), "--set", "nonsense"], "--set 'nonsense': write key=value"),
        (
            ["train", "-c", str(CONFIG), "--set", "training.algorithm=grop"],
            "no recipe is called 'grop'; known: cispo, dapo",
        ),
        (["train", "-c", str(CONFIG), "--set", "training.recipe={group_sise: 2}"], "training.recipe: "),
        (
            ["train", "-c", str(CONFIG), "--set", "agent.target=calc_x.agent:nope"],
            "module 'calc_x.agent' has no 'nope'",
        ),
        (
            ["train", "-c", str(CONFIG), "--set", "backend.driver=abacus"],
            "no driver is called 'abacus'; known: local, verl",
        ),
        (["train", "-c", str(CONFIG), "--set", "training.steps={"], "the value is not valid YAML"),
        (
            ["train", "-c", str(CONFIG), "--set", "environment.train=null"],
            "environment.train: training.steps is 40, and there are no tasks to train on",
        ),
        (
            ["train", "-c", str(CONFIG), "--set", "environment.train.args={specs: x}"],
            "environment.train.args: missing a required argument: 'spec'; calc_x.datasets:load takes (spec",
        ),
        (
            ["train", "-c", str(CONFIG), "--set", "training.failure={tired: 0.0}"],
            "training.failure: unknown kind 'tired'",
        ),
        (["train", "-c", str(CONFIG), "--set", "agent.select='re:('"], "agent.select: "),
        (
            ["train", "-c", str(CONFIG), "--set", "backend.policy=Qwen/Qwen2.5-0.5B-Instruct"],
            "backend.policy: Qwen/Qwen2.5-0.5B-Instruct: there is no such folder; ",
        ),
        (["eval", "-c", str(CONFIG), "--policy", "Qwen/Q-1"], "give hub:Qwen/Q-1"),
        (
            ["train", "-c", str(CONFIG), "--set", "backend.options.lr=1e-4x"],
            "options of the local driver: Expected `float`, got `str` - at `$.lr`",
        ),
    ],
)
def test_what_a_person_can_mend_is_said_without_a_traceback(
    agl: Command, arguments: list[str], message: str
) -> None:
    done = agl(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_process_ends_with_the_status_of_its_command() -> None:
    done = agl_process("train", "-c", "none.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "agl: none.yaml: there is no such file\n"


AGENT = """
import openai

async def solve(task, llm):
    client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "-")
    messages = [{"role": "user", "content": f"Ida has {task} coins. How many are half of them?"}]
    answer = await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=4)
    return float(len(answer.choices[0].message.content or "") % 2)

def tasks(n=4):
    return list(range(n))
"""


def small_run(folder: Path, **changes: Any) -> Path:
    """A run that lasts for hours if it is let: a few tokens a call, thousands of steps."""
    (folder / "agent_of_test_cli.py").write_text(AGENT)
    tasks = {"target": "agent_of_test_cli:tasks"}
    options = {"threads": 1, "engine_threads": 1, "max_num_seqs": 4, "max_len": 128}
    config: dict[str, Any] = {
        "agent": {"target": "agent_of_test_cli:solve", "concurrency": 4},
        "training": {"steps": 100_000, "batch_size": 1, "recipe": {"group_size": 2}},
        "environment": {"train": tasks, "val": tasks},
        "backend": {"policy": str(CONFIG.parent / "policy"), "options": options},
        "output": "runs",
        "store": "s.sqlite",
        "pythonpath": ["."],
    }
    for key, value in changes.items():
        config["backend"][key] = value
    path = folder / "run.yaml"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"thread": 1}}, "the local driver has no option 'thread'. Did you mean 'threads'?"),
        ({"policy": "nowhere"}, "nowhere: there is no such folder"),
        ({"policy": "."}, "config.json: a model folder needs this file"),
    ],
)
def test_what_the_driver_cannot_use_is_said_without_a_traceback(
    agl: Command, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    done = agl("train", "-c", str(small_run(tmp_path, **changes)))
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("agl: "), done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def is_running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(state.strip()) and not state.startswith("Z")


@pytest.mark.parametrize(
    ("number", "ctrl_c", "status"),
    sampled(
        [
            (signal.SIGINT, "default_int_handler", 130),
            (signal.SIGTERM, "default_int_handler", 143),
            (signal.SIGTERM, "SIG_IGN", 143),  # as in a shell's background job
        ],
        0,
    ),
)
@pytest.mark.slow
def test_an_interrupted_run_closes_everything(
    tmp_path: Path, number: signal.Signals, ctrl_c: str, status: int
) -> None:
    start = (
        f"import signal; signal.signal(signal.SIGINT, signal.{ctrl_c}); from _agl_main import main; main()"
    )
    command = [sys.executable, "-c", start, "train", "-c", str(small_run(tmp_path))]
    environment = {k: v for k, v in os.environ.items() if k != "AGL_PLUGINS"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        lines = []
        while "evaluated" not in (line := _line(process.stderr)):
            assert line, "".join(lines)
            lines.append(line)
        engines = children(process.pid)
        assert engines
        process.send_signal(number)
        _, rest = process.communicate(timeout=120)
        assert process.returncode == status, rest
        assert rest.splitlines()[-1] == "agl: interrupted" and "Traceback" not in rest, rest
        assert not [engine for engine in engines if is_running(engine)]
    finally:
        process.kill()
        process.communicate()
    store = SQLiteStore(tmp_path / "s.sqlite")  # where the configuration's ``store`` says
    assert asyncio.run(_rollouts(store))


async def _rollouts(store: SQLiteStore) -> int:
    found = await store.query_rollouts()
    await store.close()
    return len(found)


def test_ctrl_c_before_anything_runs_is_said_too(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(line: list[str]) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130 and capsys.readouterr().err == "agl: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.plugins
def test_eval_prints_one_json_object_last(agl: Command, tmp_path: Path) -> None:
    done = agl(
        "eval",
        "-c",
        str(CONFIG),
        "--limit",
        "4",
        "--set",
        f"output={tmp_path}",
        "--set",
        "environment.headroom={}",
        "--set",
        "backend.options.engine=thread",
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["n"] == 4 and result["calls_made"] == result["calls_exact"] > 0 and result["failed"] == 0
    assert "evaluated eval" in done.stderr
    listed = json.loads(agl("runs", str(tmp_path), "--json").stdout)
    assert (listed["run"], listed["status"]) == (result["run_id"], "finished")
    assert listed["evaluated"] == result["reward"]
    log = (tmp_path / result["run_id"] / "training.log").read_text()
    assert "INFO evaluated eval: reward" in log and "INFO finished after" in log
    assert (Path.home() / ".agent-lightning" / "logs" / "training.log").read_text().endswith(log)


def test_eval_takes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentlightning.cli.evaluate import _folder

    run = tmp_path / "runs" / "mine"
    (run / "policy").mkdir(parents=True)
    (run / "policy" / "config.json").write_text("{}")
    (run / "store.sqlite").touch()
    monkeypatch.chdir(tmp_path)
    assert _folder("mine") == _folder("runs/mine") == str((run / "policy").resolve())
    with pytest.raises(UsageError, match=r"no such folder.*and as a run: .*'yours'"):
        _folder("yours")


@pytest.mark.slow
def test_real_problems_run_through_the_same_command(tmp_path: Path) -> None:
    sets = ("environment.val={target: calc_x.datasets:load, args: {spec: svamp}}", "environment.headroom={}")
    done = agl_process(
        "eval",
        "-c",
        str(CONFIG),
        "--limit",
        "3",
        "--set",
        f"output={tmp_path}",
        *(f"--set={s}" for s in sets),
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["n"] == 3 and result["calls_made"] == result["calls_exact"] > 0


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


class _Trained:
    """A trainer whose run ends as it is told."""

    def __init__(self, end: dict[str, Any] | Exception) -> None:
        self.end = end

    def fit(self, *_: Any) -> dict[str, Any]:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ({"run_id": "r", "learned": True}, 0),
        ({"run_id": "r", "learned": False}, 3),
        ({"run_id": "r", "learned": None}, 0),  # no steps were asked for
        (NothingRewarded("evaluation 'before': none of 4 rollouts got a reward"), 3),
        (NothingTrained("3 steps in a row trained not one call"), 3),
        (UsageError("no policy"), 2),
    ],
)
def test_a_run_that_learned_nothing_has_a_status_of_its_own(
    end: dict[str, Any] | Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = (_Trained(end), None, (), ())
    monkeypatch.setattr("agentlightning.cli.train.configure", lambda *_, **__: made)
    monkeypatch.setattr(sys, "argv", ["agl", "train", "-c", str(CONFIG)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code or 0) == status
    out, err = capsys.readouterr()
    if isinstance(end, Exception):
        assert err.strip() == f"agl: {end}"
    else:
        assert json.loads(out.splitlines()[-1])["run_id"] == "r"
