"""A trained policy teaches the untrained one through the example's own agent, without any reward.

    python bench/distill/run.py [--seed N] [--teacher FOLDER --teacher-run FOLDER]     (or: make distill)

First the demo trains a policy by reward (``examples/calc_x/cpu.yaml``); it is the teacher. Then the policy
that the demo began with is taught by it: the agent's training rollouts return no reward at all, and only the
evaluations see one. The last line is one JSON object. ``teacher`` is the teacher's held-out reward, ``gain``
the share of its gain that the taught policy has, ``seconds`` the share of its training seconds that it took
(wall time, and ``cpu_seconds`` of trainer, agents and engine, of both). ``strongest_baseline`` is the
script of the example without a model. The exit status is 1 if a call was not captured exactly, or if the run
does not verify.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "examples")]

from agentlightning.cli.options import last_line, read  # noqa: E402
from agentlightning.hookspecs import hookimpl  # noqa: E402
from agentlightning.train.configured import configure  # noqa: E402
from agentlightning.types import Evaluation  # noqa: E402


class ProcessorSeconds:
    """Processor seconds of this process and of what it started, from the evaluation before training to the
    last step.
    """

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        if evaluation.name == "before":
            self.began = self.ended = used()

    @hookimpl
    def agl_policy_updated(self) -> None:
        self.ended = used()


def used() -> float:
    """Processor seconds so far."""
    this = psutil.Process()
    every = [this.cpu_times(), *(one.cpu_times() for one in this.children(recursive=True))]
    return sum(one.user + one.system for one in every)


def train(config: Path, seed: int, sets: list[str]) -> dict[str, Any]:
    """Run a configuration; return its summary, with the processor seconds and the folder."""
    clock = ProcessorSeconds()
    found = read(config, sets, training__seed=seed)
    trainer, agent, train_tasks, val = configure(found)
    trainer.config = trainer.config.model_copy(update={"callbacks": [clock]})
    summary: dict[str, Any] = trainer.fit(agent, train_tasks, val)
    folder = found.path(found.output) / summary["run_id"]
    return {**summary, "cpu_seconds": round(clock.ended - clock.began, 1), "folder": str(folder)}


def verified(folder: str) -> bool:
    """Whether ``agl verify`` makes every row of the run again as it was trained."""
    agl = Path(sys.executable).parent / "agl"
    return subprocess.run([str(agl), "verify", folder], stdout=sys.stderr).returncode == 0


def main() -> int:
    """Train the teacher, or take the given one; teach; print."""
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--teacher-run", type=Path, help="the folder of a run of the demo; default: run it")
    given = parser.parse_args()
    quiet = ["trackers=[files]"]
    if given.teacher_run:
        summary = json.loads((given.teacher_run / "summary.json").read_text(encoding="utf-8"))
        rl = {**summary, "cpu_seconds": None, "folder": str(given.teacher_run.resolve())}
    else:
        demo = ROOT / "examples" / "calc_x" / "cpu.yaml"
        rl = train(demo, given.seed, [*quiet, "environment.headroom={}", "training.evaluate_sampled=false"])
    teacher = f"{rl['folder']}/policy"
    taught = train(
        HERE / "calc_x.yaml",
        given.seed,
        [*quiet, f"distill={json.dumps({'teacher': teacher})}", f"training.steps={given.steps}"],
    )
    totals = taught["totals"]
    rewarded = [
        json.loads(line) for line in (Path(taught["folder"]) / "metrics.jsonl").open(encoding="utf-8")
    ]
    line = {
        "before": taught["reward_before"],
        "after": taught["reward_after"],
        "teacher": rl["reward_after"],
        "ci_before": taught["ci_before"],
        "ci_after": taught["ci_after"],
        "ci_teacher": rl["ci_after"],
        "gain": round(
            (taught["reward_after"] - taught["reward_before"])
            / (rl["reward_after"] - taught["reward_before"]),
            3,
        ),
        "train_seconds": taught["train_seconds"],
        "teacher_train_seconds": rl["train_seconds"],
        "cpu_seconds": taught["cpu_seconds"],
        "teacher_cpu_seconds": rl["cpu_seconds"],
        "rollouts": int(totals["rollouts"]),
        "teacher_rollouts": int(rl["totals"]["rollouts"]),
        "rewards_seen": int(sum(one["metrics"]["reward_count"] for one in rewarded)),
        "calls": int(totals["calls"]),
        "calls_exact": int(totals["calls_exact"]),
        "calls_trained": int(totals["calls_trained"]),
        "reverse_kl": [round(one["metrics"]["distill/reverse_kl"], 4) for one in rewarded],
        "strongest_baseline": {"a dozen words in the place of a model": 1.0},
        "verified": verified(taught["folder"]),
        "seed": given.seed,
        "run_id": taught["run_id"],
    }
    last_line(line)
    return 0 if line["calls"] == line["calls_exact"] and line["verified"] else 1


if __name__ == "__main__":
    sys.exit(main())
