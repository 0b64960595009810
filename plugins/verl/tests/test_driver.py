"""The driver beside a child that only speaks the channel: reports, checkpoints, resume, ways to end."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import agentlightning as agl
from agentlightning.types import Batch, Progress, Row, StepReport
from agentlightning.types.work import PolicyFolder
from agl_verl.driver import VerlDriver, VerlFailed
from agl_verl.process import session
from agl_verl.process.machine import environment_info

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="verl runs on Linux")
FAKE = Path(__file__).parent / "fake_verl.py"


def rows(flat: bool = False) -> list[Row]:
    advantages = [0.0, 0.0, 0.0] if flat else [0.0, 0.5, -0.5]
    return [
        Row(row_id="ro-1/0", rollout_id="ro-1", policy="policy", token_ids=[5, 6, 7], mask=[0, 1, 1],
            advantages=advantages, logprobs=[0.0, -1.0, -1.0], weights=[0.0, 0.5, 0.5],
            versions=[-1, 0, 0])
    ]  # fmt: skip


class Steps:
    """A job of ``steps`` steps; ``flat``: steps without a gradient; ``broken``: one whose rollouts fail."""

    def __init__(self, folder: Path, steps: int = 3, first_step: int = 0, **special: int) -> None:
        self.run_id, self.recipe, self.policy, self.seed = "r", agl.GRPO(), "policy", 1
        self.steps, self.first_step, self.folder, self.special = steps, first_step, folder, special
        self.reports: list[StepReport] = []
        self.log: list[str] = []
        self.driver: VerlDriver | None = None

    async def collect(self, step: int) -> Batch:
        self.log.append(f"collect {step}")
        if self.special.get("broken") == step:
            raise ValueError("no reward in three steps")
        return Batch(rows=rows(flat=self.special.get("flat") == step), metrics={"reward_mean": 0.5})

    def progress(self, progress: Progress) -> None:
        pass

    async def report(self, report: StepReport) -> None:
        self.log.append(f"report {report.step}")
        self.reports.append(report)

    async def evaluate(self, step: int) -> None:
        self.log.append(f"evaluate {step}")

    def state(self) -> dict[str, Any]:
        return {"reported": len(self.reports)}

    async def hold(self) -> None:
        self.log.append("hold")

    async def release(self) -> None:
        self.log.append(f"release {self.driver.version}" if self.driver else "release")

    async def saved(self, folder: Path, step: int) -> None:
        assert json.loads((folder / "job.json").read_text()) == self.state()
        self.log.append(f"saved {step}")


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    folder = tmp_path / "policy"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An "interpreter" that is the stand-in for verl."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


def driver(policy: Path, python: str, **options: Any) -> VerlDriver:
    return VerlDriver(
        PolicyFolder(policy, options={"python": python, "save_every": 1, **options}), agl.GRPO()
    )


async def life(made: VerlDriver, job: Steps) -> int:
    """Start, resume, train, close; the number of steps that were there."""
    try:
        llm = await made.start()
        assert llm.endpoint == "http://127.0.0.1:1/v1"
        job.first_step, _ = await made.resume(job.folder)
        await made.run(job)  # type: ignore[arg-type]
        return job.first_step
    finally:
        pid = made._child._process.pid  # type: ignore[union-attr]
        await made.close()
        assert session.members(pid) == []  # nothing is left, the process with a group of its own included


async def test_every_step_is_reported_saved_and_evaluated_in_order(policy: Path, python: str, tmp_path: Path):
    job = Steps(tmp_path, steps=3)
    made = driver(policy, python, keep_checkpoints=2)
    assert await life(made, job) == 0
    assert job.log == [f"{what} {n + (what == 'saved')}" for n in range(3)
                       for what in ("collect", "report", "saved", "evaluate")]  # fmt: skip
    assert [r.policy_version for r in job.reports] == [1, 2, 3] and made.version == 3
    metrics = job.reports[1].metrics
    assert metrics["reward_mean"] == 0.5 and metrics["loss"] == 0.5
    assert metrics["entropy"] == 4.0  # verl sums over the two tokens
    assert metrics["logprob_gap_max"] == 2e-6 and metrics["optimizer_steps"] == 1.0
    assert await made.checkpoints(tmp_path) == [2, 3]
    out = await made.export(tmp_path / "out")
    assert (out / "model.safetensors").read_text() == "weights of 3"


async def test_the_start_says_where_the_output_is_and_how_far_it_is(
    policy: Path, python: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    made = driver(policy, python)
    await life(made, Steps(tmp_path, steps=1))
    first, *stages = capsys.readouterr().err.splitlines()
    assert first.startswith("verl starts") and first.endswith("verl.log")
    assert [line.partition(" s: ")[2] for line in stages] == ["Python runs; importing verl", "ready"]
    assert (tmp_path / "verl.log").is_file()  # the run keeps it, also when nothing failed


@pytest.mark.slow
async def test_a_step_without_a_gradient_counts_no_optimizer_step(policy: Path, python: str, tmp_path: Path):
    job = Steps(tmp_path, steps=2, flat=1)
    await life(driver(policy, python), job)
    assert [r.metrics["optimizer_steps"] for r in job.reports] == [1.0, 0.0]


@pytest.mark.slow
async def test_a_gradient_that_is_not_finite_is_no_step(
    policy: Path, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_VERL", "2:overflow")
    job = Steps(tmp_path, steps=2)
    await life(driver(policy, python), job)
    assert [r.metrics["optimizer_steps"] for r in job.reports] == [1.0, 0.0]
    assert [r.metrics["steps_skipped"] for r in job.reports] == [0.0, 1.0]
    assert "grad_norm" not in job.reports[1].metrics


async def test_calls_are_held_while_engines_give_them_up_and_pass_when_the_new_version_is_served(
    policy: Path, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_VERL", "0:pause")
    job = Steps(tmp_path, steps=2)
    job.driver = made = driver(policy, python)
    await life(made, job)
    assert job.log == [line for n in range(2) for line in (
        f"collect {n}", "hold", f"release {n + 1}", f"report {n}", f"saved {n + 1}", f"evaluate {n}"
    )]  # fmt: skip


@pytest.mark.slow
async def test_engines_that_wake_without_a_word_are_awake_when_the_next_rows_are_asked_for(
    policy: Path, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_VERL", "0:sleep")
    job = Steps(tmp_path, steps=2)
    job.driver = made = driver(policy, python)
    await life(made, job)
    doors = [line for line in job.log if line[:4] in ("coll", "hold", "rele", "repo")]
    assert doors[:4] == ["collect 0", "hold", "release 1", "report 0"]
    assert sorted(doors[4:]) == ["collect 1", "hold", "release 2", "report 1"]


@pytest.mark.slow
async def test_nobody_waits_for_engines_that_died_asleep(
    policy: Path, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_VERL", "1:die-asleep")
    job = Steps(tmp_path, steps=2)
    with pytest.raises(VerlFailed, match="status -9"):
        await asyncio.wait_for(life(driver(policy, python), job), 300)
    assert job.log == ["collect 0", "hold", "release"]


@pytest.mark.slow
async def test_stale_tokens_are_counted(policy: Path, python: str, tmp_path: Path):
    """The rows are of version 0, and the second step trains version 1."""
    job = Steps(tmp_path, steps=2)
    await life(driver(policy, python), job)
    assert [r.metrics["tokens_stale"] for r in job.reports] == [0.0, 2.0]


@pytest.mark.parametrize(("what", "said"), [
    ("die", "ended with status -9"),
    ("fail", "RuntimeError: CUDA out of memory, say"),
    ("lose", "engine at http://127.0.0.1:1 has died"),
])  # fmt: skip
@pytest.mark.slow
async def test_what_dies_ends_the_run_and_resume_goes_on(
    what: str, said: str, policy: Path, python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_VERL", f"3:{what}")
    broken = Steps(tmp_path, steps=4)
    with pytest.raises(VerlFailed, match=said) as raised:
        await asyncio.wait_for(life(driver(policy, python), broken), 300)
    assert str(tmp_path / "verl.log") in str(raised.value) and (tmp_path / "verl.log").exists()
    assert [r.step for r in broken.reports] == [0, 1]
    monkeypatch.delenv("FAKE_VERL")
    again = Steps(tmp_path, steps=4)
    assert await life(driver(policy, python), again) == 2
    assert [r.step for r in again.reports] == [2, 3]


async def test_an_error_of_the_job_is_the_runs_error(policy: Path, python: str, tmp_path: Path):
    with pytest.raises(ValueError, match="no reward in three steps"):
        await asyncio.wait_for(life(driver(policy, python), Steps(tmp_path, broken=1)), 300)


async def test_a_child_that_does_not_start_says_what_it_said(policy: Path, tmp_path: Path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho no module named verl >&2\nexit 3\n")
    script.chmod(0o755)
    made = driver(policy, str(script))
    with pytest.raises(VerlFailed, match=r"status 3; its output ends with:\nno module named verl"):
        await made.start()
    await made.close()


async def test_a_start_that_takes_too_long(policy: Path, tmp_path: Path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 600\n")
    script.chmod(0o755)
    made = driver(policy, str(script), start_seconds=0.2)
    with pytest.raises(VerlFailed, match=r"not get ready in 0\.2 s"):
        await made.start()
    pid = made._child._process.pid  # type: ignore[union-attr]
    os.kill(pid, 9)  # this one does not mind its standard input
    await made.close()
    assert session.members(pid) == []


async def test_an_interpreter_that_is_not_there(policy: Path):
    made = driver(policy, "/no/such/python")
    with pytest.raises(VerlFailed, match="python: /no/such/python does not start"):
        await made.start()
    await made.close()


def test_the_doctor_hears_what_the_interpreter_has(tmp_path: Path):
    with pytest.raises(agl.UsageError, match="/no/such/python cannot be asked"):
        environment_info({"python": "/no/such/python"})
    script = tmp_path / "python"
    told = {"python": "3.11.7", "verl": "0.9.1", "torch": "2.13.0", "ray": "2.60.0", "agl-verl": "0.1.0"}
    for local, what in [(None, "has no agl-local"), ("0.1.0", "")]:
        script.write_text(f"#!/bin/sh\necho '{json.dumps({**told, 'agl-local': local})}'\n")
        script.chmod(0o755)
        if what:
            with pytest.raises(agl.UsageError, match=what):
                environment_info({"python": str(script)})
    found = environment_info({"python": str(script), "ranks": 2})
    assert (found["verl"], found["ranks"], found["device"]) == ("0.9.1", "2", "cpu")


@pytest.mark.parametrize(
    ("special", "asks_for_a_key"), [({}, True), ({"engine": "vllm", "device": "cuda", "ranks": 2}, True)]
)
@pytest.mark.slow
async def test_every_address_that_is_announced_is_the_gateways(
    special: dict[str, Any], asks_for_a_key: bool, policy: Path, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ADDRESSES", "http://10.0.0.1:1 http://10.0.0.2:1")
    made = driver(policy, python, **special)
    try:
        llm = await made.start()
        assert [llm.endpoint, *llm.replicas] == ["http://10.0.0.1:1/v1", "http://10.0.0.2:1/v1"]
        assert (llm.model, bool(llm.api_key)) == ("policy", asks_for_a_key)
        assert not llm.api_key or llm.api_key not in made._child._order  # type: ignore[union-attr]
    finally:
        await made.close()


async def test_a_policy_that_is_not_there(tmp_path: Path, python: str):
    with pytest.raises(agl.UsageError, match="there is no such folder"):
        await driver(tmp_path / "nowhere", python).start()


async def test_a_driver_that_is_not_started_leaves_nothing(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    driver = VerlDriver(PolicyFolder(policy), agl.GRPO())
    assert not list((tmp_path / "scratch").iterdir())
    await driver.close()
