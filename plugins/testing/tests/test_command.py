"""``agl doctor`` as a person runs it: the checklist, the JSON, the exit status, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agentlightning import cli
from agentlightning.types import UsageError
from agl_local.driver import LocalDriver

CONFIG = Path(__file__).parents[3] / "examples" / "calc_x" / "cpu.yaml"
AGL = [sys.executable, "-c", "from _agl_main import main; main()"]
AGENT = """
import asyncio, sys

import openai

async def solve(task, llm):
    client = openai.AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "-")
    messages = [{"role": "user", "content": f"Ida has {task} coins. How many are half of them?"}]
    await client.chat.completions.create(model=llm.model, messages=messages, max_tokens=4)
    await client.close()
    return 0.0

async def hang(task, llm):
    print("hanging", file=sys.stderr, flush=True)
    await asyncio.Event().wait()

def tasks(start=0, n=40):
    return list(range(start, start + n))
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The shell's, with installed plugins, and a temporary folder of the test's own."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    known = {k: v for k, v in os.environ.items() if k != "AGL_PLUGINS"}
    return {**known, "TMPDIR": str(scratch), "COLUMNS": "100", **more}


def nothing_left(folder: Path) -> bool:
    left = [p.name for p in (folder / "scratch").iterdir() if not p.name.startswith("torchinductor_")]
    return left == [] and not (folder / "runs").exists()


def doctor(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """``agl doctor`` as a process."""
    done = subprocess.run(
        [*AGL, "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(folder, **more),
    )
    assert nothing_left(folder)
    return done


Examine = Callable[..., Result]


@pytest.fixture
def examine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Examine]:
    """``agl doctor`` in this process."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(tempfile, "tempdir", None)  # it is found anew
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "agent_of_test_doctor", raising=False)

    def run(*arguments: str) -> Result:
        done = CliRunner().invoke(cli.app(), ["doctor", *arguments])
        assert nothing_left(tmp_path)
        return done

    yield run
    sys.modules.pop("agent_of_test_doctor", None)


def run_file(folder: Path, **changes: Any) -> Path:
    (folder / "agent_of_test_doctor.py").write_text(AGENT)
    options = {"threads": 1, "engine": "thread", "max_num_seqs": 4, "max_len": 128}
    config: dict[str, Any] = {
        "agent": {"target": "agent_of_test_doctor:solve", "concurrency": 4},
        "training": {"steps": 3, "batch_size": 2, "recipe": {"group_size": 2}},
        "environment": {
            "train": {"target": "agent_of_test_doctor:tasks"},
            "val": {"target": "agent_of_test_doctor:tasks", "args": {"start": 100}},
        },
        "backend": {"policy": str(CONFIG.parent / "policy"), "options": options},
        "output": "runs",
        "pythonpath": ["."],
    }
    for dotted, value in changes.items():
        section, _, key = dotted.partition("__")
        config[section][key] = value
    path = folder / "run.yaml"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.plugins
def test_without_a_configuration_the_machine_is_checked(examine: Examine) -> None:
    done = examine()
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [next(line for line in lines if f" {name} " in line)[2] for name in ("plugins", "packages")]
    assert "This machine is ready" in done.stdout and "configuration" not in done.stdout


@pytest.mark.plugins
@pytest.mark.slow
def test_an_agent_that_never_succeeds_is_refused_with_the_reason(tmp_path: Path, examine: Examine) -> None:
    done = examine("-c", str(run_file(tmp_path)), "--quick", "--json")
    assert done.exit_code == 1, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    checks = {check["name"]: check for check in report["checks"]}
    assert report["ok"] is False and report["forecast"] == {} and report["suggested_group_size"] is None
    assert checks["reward"]["title"].startswith("training would be pointless: all 16 rewards are 0")
    assert checks["capture"]["data"]["verdicts"] == {"exact": 2} and checks["forecast"]["status"] == "skipped"
    assert "✗ reward" in done.stderr and "Do not train yet: training would be pointless" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"backend__policy": "nowhere"}, "nowhere: there is no such folder"),
        ({"backend__driver": "abacus"}, "no driver is called 'abacus'"),
        ({"agent__target": "agent_of_test_doctor:nobody"}, "has no 'nobody'"),
        ({"training__stepz": 3}, "training.stepz: there is no such key. Did you mean 'steps'"),
        ({"environment__train": {"file": "none.jsonl"}}, "there is no file"),
        ({"backend__options": {"thread": 1}}, "has no option 'thread'"),
    ],
)
def test_a_run_that_cannot_start_is_refused_with_the_reason(
    tmp_path: Path, examine: Examine, changes: dict[str, Any], reason: str
) -> None:
    done = examine("-c", str(run_file(tmp_path, **changes)), "--json")
    assert done.exit_code == 1, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout.splitlines()[-1])["checks"]}
    configuration = checks["configuration"]
    assert configuration["status"] == "fail" and configuration["advice"]
    assert reason in "\n".join([configuration["title"], *configuration["detail"]])
    assert checks["engine"]["title"] == "skipped: because configuration failed"


@pytest.mark.slow
@pytest.mark.plugins
def test_a_teacher_that_is_not_there_is_a_mistake_of_the_configuration(
    tmp_path: Path, examine: Examine
) -> None:
    done = examine("-c", str(run_file(tmp_path)), "--set", "distill.teacher=nope", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout.splitlines()[-1])["checks"]}
    assert "distill.teacher: 'nope' is no folder" in checks["configuration"]["title"]
    assert checks["engine"]["status"] == "skipped"


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (UsageError("config.json: not valid JSON"), False),
        (RuntimeError("status 1"), False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("the engine process for policy 'a' ended with status -9"), True),
        (MemoryError(), True),
    ],
)
def test_memory_is_the_advice_where_it_can_be_about_memory(
    tmp_path: Path, examine: Examine, monkeypatch: pytest.MonkeyPatch, error: Exception, memory: bool
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(LocalDriver, "_open", fail)
    done = examine("-c", str(run_file(tmp_path)), "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout.splitlines()[-1])["checks"]}
    assert checks["engine"]["status"] == "fail" and checks["engine"]["advice"]
    assert any("max_num_seqs" in line for line in checks["engine"]["advice"]) is memory


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--tasks", "0"], "greater than or equal to 1"), (["-c", "none.yaml"], "does not exist")],
)
def test_a_wrong_command_line_is_an_error_of_its_own(
    examine: Examine, arguments: list[str], message: str
) -> None:
    done = examine(*arguments)
    assert done.exit_code == 2 and message in done.stderr.replace("\n", " ")


@pytest.mark.slow
def test_a_plugin_that_cannot_be_loaded_is_a_warning(tmp_path: Path) -> None:
    info = tmp_path / "site" / "agl_cracked-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: agl-cracked\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[agentlightning]\ncracked = agl_cracked.plugin\n")
    done = doctor(tmp_path, "--json", PYTHONPATH=str(tmp_path / "site"))
    assert done.returncode == 0, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout.splitlines()[-1])["checks"]}
    assert checks["plugins"]["status"] == "warn"
    title = checks["plugins"]["title"]
    assert title.startswith("plugin cracked (agl-cracked 1.5) cannot be loaded: ModuleNotFoundError: ")


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    config = run_file(tmp_path, agent__target="agent_of_test_doctor:hang")
    process = subprocess.Popen(
        [*AGL, "doctor", "-c", str(config)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(tmp_path),
    )
    try:
        assert process.stderr is not None
        while (line := process.stderr.readline()) and "hanging" not in line:
            pass
        assert line, "the agent was never run"
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=300)
        assert process.returncode == 130 and "Traceback" not in rest, rest
    finally:
        process.kill()
        process.communicate()
    assert nothing_left(tmp_path)


@pytest.mark.slow
def test_the_calculator_is_ready_to_train(tmp_path: Path) -> None:
    sets = ["--set", f"output={tmp_path / 'runs'}", "--set", "backend.options.engine=thread"]
    done = doctor(tmp_path, "-c", str(CONFIG), "--tasks", "4", "--samples", "4", "--quick", "--json", *sets)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    checks = {check["name"]: check for check in report["checks"]}
    assert all(check["status"] in ("ok", "warn") for check in checks.values())
    capture = checks["capture"]["data"]
    assert list(capture["verdicts"]) == ["exact"] and list(capture["agents"]) == ["calc"]
    assert checks["prefix"]["data"]["breaks"].keys() <= {"template"}
    assert report["suggested_group_size"] >= 2
    assert report["forecast"]["rollouts"] == 40 * 64 + 4 * 256 + 2 * 64
    assert any(line.startswith("oracle 1.000 on the same tasks") for line in checks["reward"]["detail"])


@pytest.mark.nightly
def test_the_whole_examination_of_the_calculator(tmp_path: Path) -> None:
    done = doctor(tmp_path, "-c", str(CONFIG), "--json", "--set", f"output={tmp_path / 'runs'}")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    checks = {check["name"]: check for check in report["checks"]}
    assert checks["reward"]["data"]["rollouts"] == 64 and report["suggested_group_size"] >= 4
    assert 0 < report["forecast"]["logprob_gap_max"] <= 1e-4 and report["forecast"]["step_seconds"] > 0
