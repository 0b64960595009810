"""The command line: messages a person can act on, and a last line a machine can read."""

from __future__ import annotations

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
import yaml
from typer.testing import CliRunner

from agentlightning import cli
from agentlightning._version import __version__
from agentlightning.algorithms.counters import NothingTrained
from agentlightning.algorithms.evaluate import NothingRewarded
from agentlightning.plugins.manager import load
from agentlightning.types import UsageError

EXAMPLES = Path(__file__).parents[3] / "examples"
CONFIG = "run.yaml"
"""Stands for the file that the fixture ``config`` makes."""
AGL = [sys.executable, "-c", "from _agl_main import main; main()"]


class Ended(NamedTuple):
    """How a command ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Ended]


@pytest.fixture
def config(tmp_path: Path) -> str:
    """The file of the example, without the fields of plugins."""
    given = yaml.safe_load((EXAMPLES / "calc_x" / "cpu.yaml").read_text(encoding="utf-8"))
    for name in ("headroom", "headroom_tasks"):  # of agl-testing
        del given["environment"][name]
    given |= {"pythonpath": [str(EXAMPLES)], "output": str(tmp_path)}
    given["backend"]["policy"] = str(EXAMPLES / "calc_x" / "policy")
    (path := tmp_path / "cpu.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    return str(path)


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


@pytest.mark.parametrize(
    ("name", "plugin"), [("explain", "audit"), ("runner", "cluster"), ("doctor", "testing"), ("sft", "local")]
)
def test_a_command_of_a_distribution_that_is_not_there_is_named_with_the_line_that_installs_it(
    agl: Command, name: str, plugin: str
) -> None:
    done = agl(name, "x")
    assert (
        done.returncode == 2
        and f"agl {name}: there is no such command: it comes with agl-{plugin}, which" in done.stderr
    )
    assert "pip install -c constraints.txt ./core" in done.stderr and f"./plugins/{plugin}" in done.stderr
    assert "agl explian: there is no such command" in agl("explian").stderr


def test_the_version_and_short_help(agl: Command) -> None:
    assert agl("--version").stdout == f"agl {__version__}\n"
    assert "Evaluate, train, evaluate" in agl("train", "-h").stdout


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
    assert all(name in result.output for name in ("train", "plugins"))


def test_only_the_named_command_is_imported() -> None:
    """The help and other commands start without the modules of all commands."""
    code = "import sys; from agentlightning.cli import app; app(['plugins']); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "agentlightning.cli.plugins" in loaded and "agentlightning.cli.train" not in loaded
    listed = CliRunner().invoke(cli.app(["--help"]), ["--help"]).output
    assert all(f" {name} " in listed for name in load().commands)


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "-c", "none.yaml"], "agl: none.yaml: there is no such file"),
        (
            ["train", "-c", CONFIG, "--set", "training.stepz=3"],
            "training.stepz: there is no such key. Did you mean 'steps'",
        ),
        (["train", "-c", CONFIG, "--set", "nonsense"], "--set 'nonsense': write key=value"),
        (
            ["train", "-c", CONFIG, "--set", "training.algorithm=grop"],
            "no recipe is called 'grop'. Did you mean 'grpo'?",
        ),
        (["train", "-c", CONFIG, "--set", "training.recipe={group_sise: 2}"], "training.recipe: "),
        (
            ["train", "-c", CONFIG, "--set", "agent.target=calc_x.agent:nope"],
            "module 'calc_x.agent' has no 'nope'",
        ),
        (
            ["train", "-c", CONFIG, "--set", "backend.driver=abacus"],
            "no driver is called 'abacus'",
        ),
        (["train", "-c", CONFIG, "--set", "training.steps={"], "the value is not valid YAML"),
        (
            ["train", "-c", CONFIG, "--set", "environment.train=null"],
            "environment.train: training.steps is 40, and there are no tasks to train on",
        ),
        (
            ["train", "-c", CONFIG, "--set", "environment.train.args={specs: x}"],
            "environment.train.args: missing a required argument: 'spec'; calc_x.datasets:load takes (spec",
        ),
        (
            ["train", "-c", CONFIG, "--set", "training.failure={tired: 0.0}"],
            "training.failure: unknown kind 'tired'",
        ),
        (["train", "-c", CONFIG, "--set", "agent.select='re:('"], "agent.select: "),
        (
            ["train", "-c", CONFIG, "--set", "backend.policy=Qwen/Qwen2.5-0.5B-Instruct"],
            "backend.policy: Qwen/Qwen2.5-0.5B-Instruct: there is no such folder; ",
        ),
    ],
)
def test_what_a_person_can_mend_is_said_without_a_traceback(
    agl: Command, config: str, arguments: list[str], message: str
) -> None:
    done = agl(*(config if word == CONFIG else word for word in arguments))
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_process_ends_with_the_status_of_its_command() -> None:
    done = agl_process("train", "-c", "none.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "agl: none.yaml: there is no such file\n"


def test_ctrl_c_before_anything_runs_is_said_too(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def interrupted(line: list[str]) -> None:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130 and capsys.readouterr().err == "agl: interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_command_of_a_plugin_that_is_not_there_says_how_to_install_it(agl: Command) -> None:
    for words in (["eval", "-c", "run.yaml"], ["-q", "explain", "x"]):
        done = agl(*words)
        assert done.returncode == 2 and "it comes with agl-audit, which is not installed" in done.stderr
    assert "agl evil: there is no such command" in agl("evil").stderr


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
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = (_Trained(end), None, (), ())
    config = tmp_path / "run.yaml"
    lines = (
        "agent: {target: 'an:agent'}",
        "environment: {train: {target: 'some:tasks'}}",
        "backend: {policy: a}",
    )
    config.write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr("agentlightning.cli.train.configure", lambda *_, **__: made)
    monkeypatch.setattr(sys, "argv", ["agl", "train", "-c", str(config)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code or 0) == status
    out, err = capsys.readouterr()
    if isinstance(end, Exception):
        assert err.strip() == f"agl: {end}"
    else:
        assert json.loads(out.splitlines()[-1])["run_id"] == "r"
