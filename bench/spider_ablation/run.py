"""Which calls are trained, and what they are credited with: two by two arms, three seeds each.

    python bench/spider_ablation/run.py [--seeds 1 2 3] [--steps N] [--arms NAME ...]

*selective* trains the nodes that write SQL, *all* also those that review it. *broadcast* gives every call the
reward of the rollout, *per_call* a query what it would have earned itself and a review 1.0 for a true
verdict. Everything else is `examples/spider/cpu.yaml`, also the start policy, so seeds differ in the order of
questions and in what is sampled. Each run is started as a person would start it. Writes
``bench/results/spider_ablation.json``, a table in Markdown and the curves beside it; the last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "bench")]

from record import RESULTS, machine  # noqa: E402

CONFIG = "examples/spider/cpu.yaml"
PER_CALL = ["--set", "agent.target=spider.scored:agent", "--set", "training.recipe.credit=per_call"]
ALL = ["--set", "agent.select=null"]
ARMS: dict[str, list[str]] = {
    "selective, broadcast": [],
    "selective, per_call": PER_CALL,
    "all, broadcast": ALL,
    "all, per_call": [*ALL, *PER_CALL],
}
TASKS = 444
"""Held-out questions that the finished policies are looked at with, beyond the run's own evaluation."""


def train(arm: str, seed: int, steps: int | None, folder: str) -> dict[str, Any]:
    """One run: its last line, its curve, and what its policy does with errors."""
    command = [
        "train",
        "--config",
        CONFIG,
        "--seed",
        str(seed),
        "--set",
        "environment.headroom={}",
        *ARMS[arm],
    ]
    command += ["--steps", str(steps)] if steps else []
    began = time.perf_counter()
    done = subprocess.run(
        [str(Path(sys.executable).parent / "agl"), *command, "--set", f"output={folder}"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
    )
    seconds = round(time.perf_counter() - began, 1)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    place = Path(folder) / result["run_id"]
    reports = [
        json.loads(line) for line in (place / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    metrics = [report["metrics"] for report in reports]
    return {
        "arm": arm,
        "seed": seed,
        "command": " ".join(["agl", *command]),
        **{key: result[key] for key in ("reward_before", "ci_before", "reward_after", "ci_after")},
        **{key: result[key] for key in ("sampled_before", "sampled_after", "train_seconds")},
        "calls": sum(m["calls"] for m in metrics),
        "calls_trained": sum(m["calls_trained"] for m in metrics),
        "tokens_trained": sum(m["tokens_trained"] for m in metrics),
        **looked_at(place / "policy"),
        "wall_seconds": seconds,
        "curve": [round(m["reward_mean"], 4) for m in metrics],
    }


def looked_at(policy: Path) -> dict[str, float]:
    """How a finished policy reviews and corrects, greedily and sampled, on held-out questions."""
    from agl_local.policy.folder import load_policy
    from spider.evaluate import evaluate
    from spider.questions import generate

    found: dict[str, float] = {}
    loaded, questions = load_policy(policy), generate("heldout", TASKS, seed=1)
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        evaluation = evaluate(loaded, questions, temperature)
        found[f"{name}_{TASKS}"] = round(evaluation.reward, 4)
        for what in ("rewritten", "corrected", "sound"):
            found[f"{what}_{name}"] = round(getattr(evaluation, what), 4)
    return found


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Per arm the mean over its seeds, and lowest to highest."""

    def cell(arm: str, key: str, digits: int = 3) -> str:
        values = [run[key] for run in runs if run["arm"] == arm]
        spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{spread}"

    columns = ["nodes, credit", "before", "after", "after, sampled"]
    columns += ["calls trained", "tokens trained", "true reviews"]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for arm in dict.fromkeys(run["arm"] for run in runs):
        shown = [cell(arm, key) for key in ("reward_before", "reward_after", "sampled_after")]
        shown += [cell(arm, key, 0) for key in ("calls_trained", "tokens_trained")]
        lines.append(f"| {' | '.join([arm, *shown, cell(arm, 'sound_greedy')])} |")
    return "\n".join(lines) + "\n"


def draw(runs: Sequence[Mapping[str, Any]], target: Path) -> None:
    """Training reward per step, each arm's mean over its seeds with the seeds behind it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for number, arm in enumerate(dict.fromkeys(run["arm"] for run in runs)):
        curves = [smooth(run["curve"]) for run in runs if run["arm"] == arm]
        steps = range(1, len(curves[0]) + 1)
        for curve in curves:
            axes.plot(steps, curve, color=f"C{number}", alpha=0.2, linewidth=1)
        axes.plot(
            steps, [statistics.fmean(v) for v in zip(*curves, strict=True)], color=f"C{number}", label=arm
        )
    axes.set(xlabel="step", ylabel="training reward, mean of 5 steps", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(target, dpi=130)


def smooth(values: Sequence[float], window: int = 5) -> list[float]:
    """The mean of each value and up to ``window`` - 1 before it."""
    return [statistics.fmean(values[max(0, i - window + 1) : i + 1]) for i in range(len(values))]


def main() -> int:
    """Run, write, print."""
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="instead of the configuration's")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    before = machine()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            for arm in given.arms:
                runs.append(train(arm, seed, given.steps, folder))
                print(f"{arm}, seed {seed}: {runs[-1]['reward_after']:.3f}", file=sys.stderr)
    command = f"python bench/spider_ablation/run.py --seeds {' '.join(map(str, given.seeds))}"
    kept = {"command": command, "machine": before, "runs": runs}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "spider_ablation.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    (given.out / "spider_ablation.md").write_text(table(runs), encoding="utf-8")
    draw(runs, given.out / "spider_ablation.png")
    arms = {arm: [round(run["reward_after"], 4) for run in runs if run["arm"] == arm] for arm in given.arms}
    print(json.dumps({"seeds": given.seeds, "reward_after": arms, "runs": len(runs)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
