"""A trained policy teaches the untrained one through an example's own agent, without any reward.

    python bench/distill/run.py [calc_x|router|word_problems] [--seed N] [--steps N] [--teacher-run FOLDER]
                                [--no-hint] [--set KEY=VALUE ...]

First the example trains a policy by reward; it is the teacher. Then the policy that the example began with is
taught by it: the agent's training rollouts return no reward at all, and only the evaluations see one. The
last line is one JSON object. ``teacher`` is the teacher's held-out reward, ``share_of_gain`` the share of its
gain that the taught policy has, ``share_of_seconds`` the share of its training seconds that it took;
``cpu_seconds`` are of trainer, agents and engine while they train. ``strongest_baseline`` is the best script
of the example without a model.

``hint`` is the second part: the policy as its own teacher, which is shown the gold answer, beside
``imitation``: fine-tuning (``agl sft``, one epoch) on the gold answers of as many tasks; word_problems has
this part alone. The exit status is 1 if a call was not captured exactly, or if a run does not verify.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
AGL = Path(sys.executable).parent / "agl"
sys.path[:0] = [str(HERE), str(ROOT / "examples")]

from agentlightning.cli.options import last_line, read  # noqa: E402
from agentlightning.hookspecs import hookimpl  # noqa: E402
from agentlightning.train.configured import configure  # noqa: E402
from agentlightning.types import Evaluation  # noqa: E402


@dataclass(frozen=True)
class Example:
    """An example, and what its bench changes of it."""

    taught: Path
    """The run without a reward."""
    module: str
    """Of hint and gold answers."""
    lr: float
    """Learning rate of the imitation."""
    policy: str
    """What both parts begin with."""
    demo: Path | None = None
    """The run that trains by reward, if there is one."""
    baseline: str = ""
    """The strongest scripted policy, where it is."""


EXAMPLES = {
    "calc_x": Example(
        HERE / "calc_x.yaml",
        "agents",
        3e-4,
        str(ROOT / "examples" / "calc_x" / "policy"),
        ROOT / "examples" / "calc_x" / "cpu.yaml",
        "calc_x.headroom:verbs",
    ),
    "router": Example(
        HERE / "router.yaml",
        "routing",
        1e-4,
        "smollm2",
        ROOT / "examples" / "router" / "cpu.yaml",
        "router.headroom:shared_letters",
    ),
    "word_problems": Example(HERE / "word_problems.yaml", "expressions", 1e-4, "smollm2"),
}


class ProcessorSeconds:
    """Processor seconds of this process and of what it started, from the evaluation before training to the
    last step.
    """

    def __init__(self) -> None:
        self.began = self.ended = 0.0

    @hookimpl
    def agl_evaluated(self, evaluation: Evaluation) -> None:
        if evaluation.name in ("before", "baseline"):
            self.began = self.ended = used()

    @hookimpl
    def agl_policy_updated(self) -> None:
        self.ended = used()


def used() -> float:
    """Processor seconds so far."""
    this = psutil.Process()
    every = [this.cpu_times(), *(one.cpu_times() for one in this.children(recursive=True))]
    return sum(one.user + one.system for one in every)


def train(config: Path, seed: int, *sets: str) -> dict[str, Any]:
    """Run a configuration; return its summary, with the processor seconds, the steps and the folder."""
    clock = ProcessorSeconds()
    found = read(config, ["trackers=[files]", "training.evaluate_sampled=false", *sets], training__seed=seed)
    trainer, agent, train_tasks, val = configure(found)
    trainer.config = trainer.config.model_copy(update={"callbacks": [clock]})
    summary: dict[str, Any] = trainer.fit(agent, train_tasks, val)
    folder = found.path(found.output) / summary["run_id"]
    return {**summary, "cpu_seconds": round(clock.ended - clock.began, 1), "folder": str(folder)}


def taught(example: Example, seed: int, sets: list[str], distill: dict[str, Any]) -> dict[str, Any]:
    """Train without a reward; return the figures of the run."""
    run = train(example.taught, seed, f"distill={json.dumps(distill)}", *sets)
    metrics = [one["metrics"] for one in reported(Path(run["folder"]))]
    totals = run["totals"]
    return {
        "before": run["reward_before"],
        "after": run["reward_after"],
        "ci_before": run["ci_before"],
        "ci_after": run["ci_after"],
        "train_seconds": run["train_seconds"],
        "cpu_seconds": run["cpu_seconds"],
        "rollouts": int(totals["rollouts"]),
        "rewards_seen": int(sum(one["reward_count"] for one in metrics)),
        "calls": int(totals["calls"]),
        "calls_exact": int(totals["calls_exact"]),
        "calls_trained": int(totals["calls_trained"]),
        "reverse_kl": [round(one["distill/reverse_kl"], 4) for one in metrics],
        "verified": verified(run["folder"]),
        "run_id": run["run_id"],
    }


def reported(folder: Path) -> list[dict[str, Any]]:
    """Return the reports of a run's steps."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def imitated(example: Example, seed: int) -> dict[str, Any]:
    """Fine-tune on gold answers, and evaluate as the runs do."""
    output = ROOT / "runs" / f"distill-imitation-{os.getpid()}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = os.pathsep.join([str(HERE), str(ROOT / "examples")])
    words = ["--policy", example.policy, "--data", f"{example.module}:gold_chats", "--output", str(output)]
    subprocess.run(
        [AGL, "sft", *words, "--epochs", "1", "--lr", str(example.lr), "--seed", str(seed), "--json"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=sys.stderr,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = train(
        example.taught, seed, "training.algorithm=grpo", "training.steps=0", f"backend.policy={output}"
    )
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"after": run["reward_before"], "ci_after": run["ci_before"], "cpu_seconds": round(spent, 1)}


def verified(folder: str) -> bool:
    """Whether ``agl verify`` makes every row of the run again as it was trained."""
    return subprocess.run([AGL, "verify", folder], stdout=sys.stderr).returncode == 0


def by_reward(example: Example, seed: int, finished: Path | None) -> dict[str, Any]:
    """Return the summary of the run that trains the teacher, or of one that has ended."""
    if finished is None:
        assert example.demo is not None
        script = json.dumps({"script": example.baseline})
        more = (f"environment.headroom={script}", "environment.headroom_tasks=1000")
        return train(example.demo, seed, *more)
    summary = json.loads((finished / "summary.json").read_text(encoding="utf-8"))
    seconds = [sum(one["seconds"].values()) for one in reported(finished)]  # of all its lives
    return {
        **summary,
        "train_seconds": round(sum(seconds), 1),
        "cpu_seconds": None,
        "folder": str(finished.resolve()),
    }


def by_teacher(example: Example, seed: int, sets: list[str], rl: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of the run that is taught by the policy of the run ``rl``, beside its own."""
    found = taught(example, seed, sets, {"teacher": f"{rl['folder']}/policy"})
    gained = (found["after"] - found["before"]) / (rl["reward_after"] - found["before"])
    return {
        **found,
        "teacher": rl["reward_after"],
        "ci_teacher": rl["ci_after"],
        "teacher_train_seconds": rl["train_seconds"],
        "teacher_cpu_seconds": rl["cpu_seconds"],
        "teacher_rollouts": int(rl["totals"]["rollouts"]),
        "share_of_gain": round(gained, 3),
        "share_of_seconds": round(found["train_seconds"] / rl["train_seconds"], 3),
        "strongest_baseline": {example.baseline: (rl.get("headroom") or {}).get("script")},
    }


def main() -> int:
    """Train the teacher, or take the given one; teach; teach by a hint; print."""
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("example", nargs="?", default="calc_x", choices=EXAMPLES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of each run without a reward (default: its file)")
    parser.add_argument("--teacher-run", type=Path, help="a finished run of the example; default: train it")
    parser.add_argument("--no-hint", action="store_true", help="leave the second part out")
    parser.add_argument("--set", action="append", default=[], help="of the runs without a reward")
    given = parser.parse_args()
    example = EXAMPLES[given.example]
    if example.demo is None and (given.teacher_run or given.no_hint):
        parser.error(f"{given.example} has the second part alone: leave --teacher-run and --no-hint out")
    sets = [*given.set, *([f"training.steps={given.steps}"] if given.steps else [])]
    line: dict[str, Any] = {"example": given.example, "seed": given.seed}
    runs = []
    if example.demo is not None:
        rl = by_reward(example, given.seed, given.teacher_run)
        runs.append(by_teacher(example, given.seed, sets, rl))
        line |= runs[0]
    if not given.no_hint:
        hint = {"teacher": "self", "hint": f"{example.module}:gold"}
        runs.append(taught(example, given.seed, sets, hint))
        line["hint"] = {**runs[-1], "imitation": imitated(example, given.seed)}
    last_line(line)
    return 0 if all(one["calls"] == one["calls_exact"] and one["verified"] for one in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
