"""Trainings of a few steps of the quickstarts' policy, and what must hold of each afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from each import Unsound

from agentlightning.credit import resolve
from agentlightning.credit.verdicts import verdicts
from agentlightning.store import SQLiteStore
from agentlightning.store.pages import pages
from agentlightning.types import Record
from agentlightning.types.base import LEARNED_NOTHING

ROOT = Path(__file__).resolve().parents[1]
POLICY = ROOT / "examples" / "quickstart" / "policy"
STEPS, TASKS, GROUP = 3, 4, 4
QUIET = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def described(
    folder: Path, agent: Mapping[str, Any], train: Mapping[str, Any], *pythonpath: Path
) -> list[str]:
    """Write the file of a run; the words of ``agl`` that train it. Its files go to ``folder/runs``."""
    file = folder / "run.yaml"
    description = {
        "agent": {"concurrency": 8, "timeout_seconds": 240, **agent},
        "training": {
            "steps": STEPS,
            "batch_size": TASKS,
            "recipe": {"group_size": GROUP},
            "evaluate_sampled": False,
            "no_signal_steps": STEPS,
        },
        "environment": {"train": dict(train)},
        "backend": {
            "policy": str(POLICY),
            "options": {"threads": 1, "engine_threads": 1, "max_len": 1024},
        },
        "output": str(folder / "runs"),
        "pythonpath": [str(ROOT / "examples"), *map(str, pythonpath)],
    }
    file.write_text(json.dumps(description), encoding="utf-8")
    return ["train", "--config", str(file)]


def trained(command: list[str], python: str, *, learns: bool = True) -> None:
    """Run a training to its end, with the commands of its environment first on the path. ``learns``: whether
    it must have learned something.
    """
    folders = os.pathsep.join([str(Path(python).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, env={**os.environ, **QUIET, "PATH": folders}, stdout=sys.stderr, stderr=subprocess.PIPE
    )
    sys.stderr.buffer.write(done.stderr)
    if done.returncode and (learns or done.returncode != LEARNED_NOTHING):
        said = " ".join(done.stderr.decode().strip().splitlines()[-2:])
        raise Unsound(f"ended with {done.returncode}: {said}")


async def judge(
    runs: Path,
    *,
    named: tuple[str, ...] = ("reward",),
    check: Callable[[SQLiteStore, Record, float], Awaitable[None]] | None = None,
) -> list[float]:
    """Return the reward of each rollout of a run. ``named``: the rewards that each has, by name; ``check``
    raises :class:`Unsound` for a rollout that does not count. Raise it too if a step, a rollout or a reward
    is missing, or a call is not exact.
    """
    (run,) = {path.parent for path in runs.glob("*/metrics.jsonl")}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    means = [line["metrics"]["reward_mean"] for line in lines if "reward_mean" in line["metrics"]]
    if len(means) != STEPS or any(line["metrics"].get("rollouts_failed") for line in lines):
        raise Unsound(f"{len(means)} steps of {STEPS}, or failed rollouts: {lines}")
    store, rewards = SQLiteStore(str(run / "store.sqlite")), list[float]()
    try:
        ids = [one.rollout_id async for page in pages(store.query_rollouts) for one in page]
        for record in await store.records(ids):
            who, final = record.rollout.rollout_id, resolve(record).final
            kinds = {verdict.kind for verdict in verdicts(record).values()}
            if kinds != {"exact"} or final is None:
                raise Unsound(f"{who}: calls {kinds or 'none'}, reward {final}")
            if {reward.name for reward in record.rewards} != {*named}:
                raise Unsound(f"{who}: rewards {[reward.name for reward in record.rewards]}")
            if check is not None:
                await check(store, record, final)
            rewards.append(final)
    finally:
        await store.close()
    if len(rewards) != STEPS * TASKS * GROUP or abs(fmean(rewards) - fmean(means)) > 1e-9:
        raise Unsound(
            f"{len(rewards)} rollouts earned {fmean(rewards):.3f} each, the steps {fmean(means):.3f}"
        )
    return rewards
