"""The agent through gateway, store, credit and driver: what is trained, what the demo says of it, and that a
run that is killed and resumed becomes the run it would have been, bit for bit.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from marks import sampled

pytest.importorskip("langgraph", reason="the agent is a LangGraph graph")
pytest.importorskip("langchain_openai")
pytest.importorskip("torch")

from agentlightning.cli.options import read
from agentlightning.train.configured import configure
from agentlightning.types import Call
from agl_audit.run import open_run
from agl_audit.verification.verify import verify
from agl_local.driver import LocalDriver
from router import datasets, demo

pytestmark = pytest.mark.plugins
CONFIG = Path(datasets.__file__).parent / "cpu.yaml"
SMALL = {
    "training.batch_size": "2",
    "training.recipe.group_size": "8",
    "environment.train.args.limit": "60",
    "environment.val.args.limit": "3",
    "environment.headroom": "{}",
    "agent.timeout_seconds": "60",
    "trackers": "[files]",
}
OPTIONS = "threads: 1, engine_threads: 1, max_num_seqs: 16, max_len: 512"
EXACT = "deterministic: true, save_every: 1"
PARTS = {
    "whole": ", lr: 1.0e-3",
    "freeze": ', lr: 1.0e-3, freeze: ["*embed_tokens*"]',
    "lora": ", lora: {rank: 4, alpha: 8}, lr: 1.0e-2",
}
"""What of the policy is trained."""
AGL = Path(sys.executable).with_name("agl")
KEYS = {
    "reward_before", "reward_after", "ci_before", "ci_after", "by_distractor", "baseline_letters",
    "ci_baseline", "ahead_of_baseline", "ci_ahead", "train_seconds", "total_seconds", "peak_mb",
    "peak_mb_trainer", "peak_mb_engine", "calls", "calls_exact", "seed",
}  # fmt: skip


def settings(policy: Path, folder: Path, *, steps: int, options: str = "", **sets: Any) -> list[str]:
    """Return ``key=value`` of a run ``r`` in ``folder``; ``options``: more options of the driver."""
    joined = f"{{{OPTIONS}{options and ', '}{options}}}"
    chosen = {"backend.policy": policy, "backend.options": joined, "output": folder, "run": "r"}
    values = {**SMALL, "training.steps": steps, **chosen, **sets}
    return [f"{key}={value}" for key, value in values.items()]


async def train(sets: list[str]) -> tuple[dict[str, Any], list[datasets.Task]]:
    """Train in this process; return the summary and the held-out tasks."""
    trainer, agent, tasks, val = configure(read(CONFIG, sets))
    return await trainer.afit(agent, tasks, val), list(val)


def digests(folder: Path) -> list[tuple[int, str, str]]:
    """Return step, digest of the rows and digest of the parameters of every step that was reported."""
    path = folder / "r" / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [(one["step"], one["rows_digest"], one["params_digest"]) for one in found]


@pytest.mark.slow
def test_the_router_node_is_trained_and_every_call_is_exact(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = settings(llama, tmp_path, steps=2, options="lr: 1.0e-3, engine: thread")
    assert demo.main([word for one in sets for word in ("--set", one)]) == 0
    printed = capsys.readouterr()
    line = json.loads(printed.out.splitlines()[-1])

    async def trained() -> list[Call]:
        async with open_run(str(tmp_path / "r")) as run:
            rollouts = await run.store.query_rollouts(run_id="r", mode="train")
            records = await run.store.records([rollout.rollout_id for rollout in rollouts])
        assert len(rollouts) == 2 * 2 * 8
        return [call for record in records for call in record.calls]

    calls, tasks = asyncio.run(trained()), list(configure(read(CONFIG, sets))[3])
    assert len(calls) == 2 * 2 * 8
    assert {call.tags["node"] for call in calls} == {"route"} and all(call.selected for call in calls)
    assert line["tokens_trained"] > 0 and line["logprob_gap_max"] < 1e-4
    assert set(line) > KEYS
    assert line["calls"] == line["calls_exact"] == 32 + 2 * 3  # two evaluations of 3 tasks
    assert line["total_seconds"] > line["train_seconds"] > 0
    assert line["peak_mb"] >= max(line["peak_mb_trainer"], line["peak_mb_engine"])
    assert {kind: of["n"] for kind, of in line["by_distractor"].items()} == Counter(t["kind"] for t in tasks)
    total = sum(of["n"] * of["after"]["reward"] for of in line["by_distractor"].values())
    assert total / 3 == pytest.approx(line["reward_after"])
    assert "the model, trained" in printed.err and "near-name" in printed.err


# ---------------------------------------------------------------------------------- broken off and resumed
class Crash(BaseException):
    """Stands for whatever ends a process: nothing catches it."""


@pytest.mark.slow
@pytest.mark.parametrize("part", sampled(PARTS, 0))
async def test_a_run_that_breaks_off_goes_on_from_its_checkpoint(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    options = f"{EXACT}, engine: thread{PARTS[part]}"
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    await train(settings(llama, whole, steps=2, options=options))
    update, steps = LocalDriver._update, iter(range(2))

    def until_the_last(*args: Any, **kwargs: Any) -> Any:
        if next(steps) == 1:
            raise Crash
        return update(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(LocalDriver, "_update", until_the_last)
        with pytest.raises(Crash):
            await train(settings(llama, broken, steps=2, options=options))
    assert len(digests(broken)) == 1
    await train(settings(llama, broken, steps=2, options=options, resume="true"))
    same(whole, broken)
    await adds_up(broken, steps=2)


@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=pytest.mark.slow if part == "lora" else pytest.mark.nightly) for part in PARTS],
)
def test_kill_9_and_resume(llama: Path, tmp_path: Path, part: str) -> None:
    kill_and_resume(llama, tmp_path, steps=5, seconds=600, options=EXACT + PARTS[part])


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["deterministic", "fast"])
def test_kill_9_and_resume_of_the_pretrained_model(tmp_path: Path, mode: str) -> None:
    """Trained as `make demo-real` trains it, the same layers at the same rate. That is fast mode, whose bits
    depend on what shares a batch; deterministic mode computes the backward pass in float32.
    """
    exact = mode == "deterministic"
    names = ["lr", "freeze", "micro_batch_tokens", *([] if exact else ["backward_dtype"])]
    demo_real = read(CONFIG, []).backend.options
    chosen = (f"{name}: {json.dumps(demo_real[name])}" for name in names)
    options = ", ".join([EXACT if exact else "save_every: 1", *chosen])
    kill_and_resume(Path("smollm2"), tmp_path, steps=4, seconds=1800, options=options, compared=exact)


def kill_and_resume(
    policy: Path, folder: Path, *, steps: int, seconds: float, options: str, compared: bool = True
) -> None:
    """Kill a run with SIGKILL after its second step and resume it: all adds up, and where it is ``compared``,
    each step is bit for bit that of a run which was left alone.
    """
    whole, killed = folder / "whole", folder / "killed"
    if compared:
        assert start(policy, whole, steps, options, folder / "whole.log").wait(seconds) == 0
    run = start(policy, killed, steps, options, folder / "killed.log")
    deadline = time.monotonic() + seconds
    while len(digests(killed)) < 2:
        assert run.poll() is None and time.monotonic() < deadline, (folder / "killed.log").read_text()
        time.sleep(0.02)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    assert len(digests(killed)) < steps, "the run was over before it was killed"
    resumed = start(policy, killed, steps, options, folder / "resumed.log", "--resume")
    assert resumed.wait(seconds) == 0, (folder / "resumed.log").read_text()
    if compared:
        same(whole, killed)
    asyncio.run(adds_up(killed, steps))


async def adds_up(folder: Path, steps: int) -> None:
    """No rollout was lost, every call of a rollout has an end in the ledger, and all can be recomputed."""
    async with open_run(str(folder / "r")) as run:
        rollouts = await run.store.query_rollouts(run_id="r", mode="train")
        checked = await verify(run)
        seals = await run.store.query_fingerprints("r", limit=1000)
    assert len(rollouts) == steps * 2 * 8 and all(rollout.status == "succeeded" for rollout in rollouts)
    assert len({seal.rollout_id for seal in seals}) == len(seals) >= len(rollouts)
    assert not any(seal.ledger.get("not-recorded") for seal in seals)
    assert checked.equal, checked.differences
    assert (checked.steps, checked.rollouts) == (steps, len(rollouts)) and checked.checkpoints > 0


def start(
    policy: Path, folder: Path, steps: int, options: str, log: Path, *more: str
) -> subprocess.Popen[bytes]:
    """Start ``agl train``, as a person would."""
    sets = [part for one in settings(policy, folder, steps=steps, options=options) for part in ("--set", one)]
    command = [str(AGL), "train", "--config", str(CONFIG), *sets, *more]
    with log.open("wb") as out:
        return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)


def same(whole: Path, resumed: Path) -> None:
    """Both runs had the same rows, parameters, evaluations and totals, at every step."""
    expected = digests(whole)
    assert digests(resumed) == expected
    assert len({parameters for _, _, parameters in expected}) > 1, "the parameters never changed"
    assert summary(resumed) == summary(whole)


def summary(folder: Path) -> dict[str, Any]:
    found = json.loads((folder / "r" / "summary.json").read_text(encoding="utf-8"))
    names = ("reward_before", "reward_after", "steps", "seed")
    totals = {name: found["totals"][name] for name in ("rollouts", "calls_exact", "tokens_trained")}
    return {name: found[name] for name in names} | totals
