"""Several policies by configuration: read, looked over by the doctor, trained, evaluated, listed."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from agl_testing import ScriptedModelServer
from agl_testing.doctor import Check, ConfiguredRun, ProbeSize, examine
from e2e.test_line import Watch
from e2e.two_policies import KEY, OPTIONS, game, judge, said, trainer
from openai import AsyncOpenAI
from rich.console import Console

from agentlightning import LLM, cli
from agentlightning.train.config import from_fields
from agentlightning.train.configured import policies_of
from agentlightning.train.run_file import load_config
from agentlightning.types import StepReport
from agentlightning.types.base import ConfigError
from agentlightning.types.work import PolicyFolder
from agl_audit.commands.runs import table
from agl_audit.run_list import RunSummary
from agl_trackers.console import ConsoleTracker
from plugins.local.tests.driver_fixtures import saved_policy

MAP = {"wolf": "wolves", "seer": "town", "referee": "judge"}


def configuration(folder: Path, endpoint: str, **more: Any) -> Path:
    """A run of the game, in a file."""
    (folder / "tasks.jsonl").write_text("3\n5\n8\n")
    options = {**OPTIONS, "deterministic": False, "save_every": 1}
    data: dict[str, Any] = {
        "agent": {"target": "e2e.two_policies:game", "policies": MAP, "concurrency": 4},
        "training": {"steps": 2, "batch_size": 1, "recipe": {"group_size": 3, "credit": "per_agent"}},
        "environment": {"train": {"file": "tasks.jsonl"}, "val": {"file": "tasks.jsonl", "limit": 2}},
        "backend": {
            "policy": {
                "wolves": {"path": "wolves"},
                "town": {"path": "town", "options": {"lr": 0.002}},
                "judge": {"endpoint": endpoint, "model": "referee-1", "api_key_env": "JUDGE_KEY"},
            },
            "options": options,
        },
        "pythonpath": [str(Path(__file__).parents[1])],
        **more,
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(data, sort_keys=False))
    return file


def make_folders(folder: Path) -> None:
    """Folders of the policies that are trained; empty, for nothing loads them."""
    for name in ("wolves", "town"):
        (folder / name).mkdir()


# --------------------------------------------------------------------------------------------- read
def test_what_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(configuration(tmp_path, "http://127.0.0.1:9/v1"))  # a runner has no key, no folders
    with pytest.raises(ConfigError, match=r"backend.policy.wolves.path: wolves: there is no such folder"):
        policies_of(config)
    make_folders(tmp_path)
    with pytest.raises(ConfigError, match=r"backend.policy.judge.api_key_env: .* JUDGE_KEY is not set"):
        policies_of(config)
    monkeypatch.setenv("JUDGE_KEY", KEY)
    found = policies_of(config)
    assert found.trained == {
        "wolves": PolicyFolder(tmp_path.resolve() / "wolves", name="wolves"),
        "town": PolicyFolder(tmp_path.resolve() / "town", options={"lr": 0.002}, name="town"),
    }
    assert found.frozen == {"judge": LLM(endpoint="http://127.0.0.1:9/v1", model="referee-1", api_key=KEY)}
    assert found.agents == MAP and from_fields({"steps": 3}, config.serving(found)).served == found


@pytest.mark.slow
def test_several_addresses_of_one_endpoint(tmp_path: Path) -> None:
    judge = {"endpoints": ["http://a/v1", "http://b/v1"], "model": "referee-1"}
    make_folders(tmp_path)
    config = load_config(configuration(tmp_path, "http://unused/v1"), {"backend.policy.judge": judge})
    served = policies_of(config)
    assert served.frozen["judge"] == LLM(endpoint="http://a/v1", replicas=["http://b/v1"], model="referee-1")
    assert served.record()["policies"]["judge"]["replicas"] == ["http://b/v1"]
    assert "judge (frozen) referee-1 at http://a/v1, http://b/v1" in served.summary()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("agent.policies", {"wolf": "wolvs"}, r"agent\.policies: 'wolf' has the unknown policy 'wolvs'"),
        ("agent.policies", {"re:(": "wolves"}, r"agent\.policies: '\(' is not a regular expression"),
        ("backend.policy", {}, r"yaml: backend\.policy: .*at least 1 item"),
        ("backend.policy.wolves.pth", "x", r"backend\.policy\.wolves\.pth: .*Did you mean 'path'"),
        ("backend.policy.judge.api_key", KEY, r"judge\.api_key: .*Did you mean 'api_key_env'"),
        ("backend.policy.judge.path", "x", r"backend\.policy\.judge: .*either path \(a folder\)"),
        ("backend.policy.judge.train", False, r"an endpoint is never trained: train and options belong"),
        ("backend.policy.judge.model", None, r"give the model that the endpoint is to be asked for"),
        ("backend.policy.wolves.model", "m", r"model and api_key_env belong to an endpoint"),
        ("backend.policy.judge.endpoint", "nowhere", r"backend\.policy: 'judge': .*url is 'nowhere'"),
        ("backend.policy.judge.endpoints", ["http://h/v1"], r"either endpoint \(one address\), or "),
        ("backend.policy.wolves.endpoints", ["http://h/v1"], r"wolves: .*either path \(a folder\)"),
        ("backend.policy.wolves.endpoints", [], r"wolves\.endpoints: .*at least 1"),
        ("backend.policy.new", {"endpoints": ["http://h/v1"]}, r"new: .*give the model that the endpoint"),
        (
            "backend.policy.new",
            {"endpoints": ["http://h/v1", "http://h/v1/"], "model": "m"},
            r"backend\.policy: 'new': .*an address is given twice",
        ),
        ("backend.policy.by-agent", {"path": "x"}, r"backend\.policy: 'by-agent': that name is taken"),
    ],
)  # fmt: skip
def test_errors_name_file_and_key(tmp_path: Path, key: str, value: Any, match: str) -> None:
    file = configuration(tmp_path, "http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match=match) as caught:
        load_config(file, {key: value})
    assert KEY not in str(caught.value)


# ---------------------------------------------------------------------------- train, evaluate, look at it
@pytest.fixture
def agl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Runs a command here, as a process would; its last line."""

    def run(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        monkeypatch.setattr("sys.argv", ["agl", *words])
        with ThreadPoolExecutor(1) as pool, pytest.raises(SystemExit) as ended:
            pool.submit(cli.main).result()
        shown = capsys.readouterr()
        assert not ended.value.code, f"{words}: {shown.err}{shown.out}"
        found: dict[str, Any] = json.loads(shown.out.splitlines()[-1])
        return found

    return run


@pytest.mark.slow
@pytest.mark.plugins
def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agl: Callable[..., Any]) -> None:
    for name, seed in (("wolves", 1), ("town", 2)):
        saved_policy(tmp_path / name, seed)
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    with ScriptedModelServer(lambda body: "fair", model="referee-1", ids="never") as server:
        file = configuration(tmp_path, server.url)
        done = agl("train", "-c", str(file), "--run", "r")
        assert done["run_id"] == "r" and done["reward_after"] is not None
        more = agl("train", "-c", str(file), "--run", "r", "--resume", "--steps", "3")
        assert more["run_id"] == "r"
        policy = tmp_path / "runs" / "r" / "policy"
        given = [f"--policy={name}={policy / name}" for name in ("wolves", "town")]
        judged = agl("eval", "-c", str(file), *given)
        assert judged["n"] == 2 and judged["calls_made"] == 8
        listed = agl("runs", "runs/r", "--json")
        assert (listed["run"], listed["policies"]) == ("r", ["town", "wolves"])
        checked = agl("verify", "r", "--json")
        assert checked["equal"] and checked["steps"] == 3
    steps = (tmp_path / "runs" / "r" / "metrics.jsonl").read_text().splitlines()
    reports = [json.loads(step) for step in steps]
    made = sorted((r["step"], r["policy"]) for r in reports)
    assert made == [(step, name) for step in range(3) for name in ("town", "wolves")]
    assert all(r["versions"].keys() == {"wolves", "town"} for r in reports)


# ---------------------------------------------------------------------------------------------- the doctor
async def looked_over(folder: Path, agent: Any, referee: LLM, **options: Any) -> dict[str, Check]:
    one = trainer(folder, Watch(), referee, trackers=None, run=None, **options)
    report = await examine(lambda: ConfiguredRun(one, agent, [3, 5], [1]), ProbeSize(tasks=2, samples=2))
    return {check.name: check for check in report.checks}


@pytest.mark.slow
async def test_the_doctor_says_who_talks_to_whom(tmp_path: Path) -> None:
    options = {**OPTIONS, "deterministic": False}
    async with judge() as referee:
        found = await looked_over(tmp_path / "runs", game, referee, options=options)
    shown = "\n".join(
        f"{check.name}: {check.status} {check.title} {check.detail}" for check in found.values()
    )
    assert all(check.status != "fail" for check in found.values()), shown
    capture = found["capture"]
    for line in ("wolves (trained) ← 2 × wolf", "town (trained) ← 4 × seer", "judge (frozen) ← 2 × referee"):
        assert f"policy {line}" in capture.detail, shown
    assert "no-ids" not in "".join(capture.detail) and capture.data["calls"] == 6
    assert {f"policy {name} answers" for name in ("wolves", "town", "judge")} <= set(found["engine"].detail)
    assert not any(KEY in line for check in found.values() for line in check.detail)


@pytest.mark.slow
async def test_the_doctor_flags_who_maps_to_nothing(tmp_path: Path) -> None:
    async def stranger(task: int, llm: LLM) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            await said(client, llm, "wolf", f"{task} coins")
            await said(client, llm, "hunter", f"{task} coins")
        return 1.0

    async with judge() as referee:
        found = await looked_over(
            tmp_path / "runs", stranger, referee, options={**OPTIONS, "deterministic": False}
        )
    capture = found["capture"]
    assert capture.status == "fail" and capture.title == "'hunter' maps to no policy: 2 calls refused"
    problems = "\n".join(capture.detail)
    assert "policy 'town' got no call in the probe" in problems
    assert "agent.policies: 're:se.*' matched no call of the probe, so 'town' got none by it" in problems
    assert any("agent.policies" in line for line in capture.advice)


@pytest.mark.slow
async def test_the_doctor_says_which_policy_does_not_answer(tmp_path: Path) -> None:
    dead = LLM(endpoint="http://127.0.0.1:9/v1", model="m", api_key=KEY)
    found = await looked_over(tmp_path / "runs", game, dead, options={**OPTIONS, "deterministic": False})
    assert found["engine"].status == "fail" and found["engine"].title.startswith(
        "policy 'judge' does not answer"
    )
    assert KEY not in found["engine"].title


# --------------------------------------------------------------------------------------------- the terminal
def reports(step: int) -> list[StepReport]:
    return [
        StepReport(
            run_id="r", step=step, policy=name, policy_version=step + 1,
            metrics={"reward_mean": 0.5, "rows": 4.0, "tokens": 9.0, "credit_mean": sign * (step + 1.0)},
        )
        for name, sign in (("wolves", 1), ("town", -1))
    ]  # fmt: skip


@pytest.mark.parametrize("terminal", [True, False])
def test_the_terminal_shows_each_policy(tmp_path: Path, terminal: bool) -> None:
    out = io.StringIO()
    tracker = ConsoleTracker(tmp_path, Console(file=out, force_terminal=terminal, width=120))
    tracker.start({"run_id": "r", "steps": 3, "trained": ["town", "wolves"]})
    for step in range(3):
        for report in reports(step):
            tracker.step(report)
    assert tracker.rewards == [0.5] * 3  # the rollouts are the policies' together
    assert tracker.policies == {"town": [-1.0, -2.0, -3.0], "wolves": [1.0, 2.0, 3.0]}
    totals = {"optimizer_steps": 3.0, "skipped": 0.0, "calls": 12.0, "tokens_trained": 99.0}
    tracker.finish({"policies": {"wolves": totals, "town": totals}, "totals": {}})
    assert tracker._live is None  # the terminal is given back
    assert "1.00 → 3.00" in out.getvalue() and "-1.00 → -3.00" in out.getvalue()
    again = ConsoleTracker(tmp_path, Console(file=out, width=120))
    again.resumed({"run_id": "r", "steps": 3, "trained": ["town", "wolves"]}, [*reports(0), *reports(1)], [])
    assert again.rewards == [0.5, 0.5] and "resumed after 2 of 3 steps" in out.getvalue()


def test_the_list_of_runs_counts_policies() -> None:
    console = Console(file=io.StringIO(), width=130)
    console.print(table([RunSummary(run="r", store="s", recipe="grpo", policies=["a", "b"])]))
    assert "grpo · 2 policies" in console.file.getvalue()  # type: ignore[attr-defined]
