"""Settings of the training by what queries return, compared on the questions ``choice`` of spider/real.

    python bench/record.py spider_real_settings -- python bench/spider_real_settings.py POLICY [NAME ...]

``POLICY``: the folder that `agl policy fetch examples/spider/real/adapter` prints. Every run trains on
questions that the policy solves sometimes, and is evaluated, greedily, before and after on questions about 5
databases of the training set that it does not train on; the test is not touched. The last line is one JSON
object: of each setting the rewards, the mean difference on the same questions with its interval over
databases, the share of groups whose rewards differ, without which comparing them has no gradient, and what a
step costs in tokens, seconds and seconds of CPU. ``--steps`` and ``--questions`` make the runs shorter.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
CONFIG = EXAMPLES / "spider" / "real" / "cpu.yaml"
sys.path.insert(0, str(EXAMPLES))

from agentlightning.types.base import LEARNED_NOTHING  # noqa: E402
from spider.real.outcomes import gain, outcomes, summary  # noqa: E402

COMPARED = "{group_size: 8, temperature: 1.0}"
SETTINGS: dict[str, dict[str, str]] = {
    "as configured": {},
    "answers of a group compared": {"training.recipe": COMPARED},
    "compared, temperature 1.3, learning rate 1e-4": {
        "training.recipe": "{group_size: 8, temperature: 1.3}",
        "backend.options.lr": "1.0e-4",
    },
    "compared, all weights, temperature 0.8, all questions of practice": {
        "training.recipe": "{group_size: 8, temperature: 0.8}",
        "backend.options.lr": "5.0e-5",
        "backend.options.lora": "null",
        "backend.options.verify": "true",
        "environment.train": "{target: spider.real.tasks:load, args: {spec: practice}}",
    },
    "learning rate 5e-4, four mini-batches": {
        "backend.options.lr": "5.0e-4",
        "training.recipe.minibatches": "4",
    },
    "learning rate 1e-3, four mini-batches": {
        "backend.options.lr": "1.0e-3",
        "training.recipe.minibatches": "4",
    },
    "compared, learning rate 5e-4, four mini-batches": {
        "backend.options.lr": "5.0e-4",
        "training.recipe": "{group_size: 8, temperature: 1.0, minibatches: 4}",
    },
    "questions of train alone": {
        "environment.train": "{target: spider.real.tasks:load, args: {spec: train, solved: [0.1, 0.9]}}"
    },
    "any words, not only names of the schema": {"agent.target": "spider.real.agent:agent"},
    "only write is trained": {"agent.select": "[write]"},
    "only link is trained": {"agent.select": "[link]"},
    "only rewrite is trained": {"agent.select": "[rewrite]"},
}
"""What each setting changes in ``cpu.yaml``."""


def train(policy: str, name: str, seed: int, steps: int, questions: int, folder: Path) -> dict[str, Any]:
    """Return the figures of one run."""
    sets = {
        "backend.policy": policy,
        "environment.val": f"{{target: spider.real.tasks:load, args: {{spec: choice, limit: {questions}}}}}",
        "output": str(folder),
        **SETTINGS[name],
    }
    given = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    words = ["train", "--config", str(CONFIG), "--seed", str(seed), "--steps", str(steps), *given]
    began = _cpu()
    done = subprocess.run(
        [str(Path(sys.executable).with_name("agl")), *words],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    if done.returncode not in (0, LEARNED_NOTHING):
        raise SystemExit(done.returncode)
    line = json.loads(done.stdout.strip().splitlines()[-1])
    run = folder / line["run_id"]
    found = asyncio.run(outcomes(str(run)))
    half = {when: [one for one in found if one.evaluation == when] for when in ("before", "after")}
    return {
        "setting": name,
        "seed": seed,
        **{
            key: line[key]
            for key in ("reward_before", "reward_after", "calls", "calls_exact", "train_seconds")
        },
        **{
            key: value
            for key, value in gain(half["after"], half["before"]).items()
            if key in ("gain", "ci_gain")
        },
        "one_shot_after": summary(half["after"])["one_shot"],
        **_steps(run),
        "cpu_seconds": round(_cpu() - began, 1),
    }


def _steps(run: Path) -> dict[str, Any]:
    """Return what the steps had in groups, and what one cost."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    metrics, n = [one["metrics"] for one in lines], len(lines)
    groups = sum(one["groups"] for one in metrics)
    return {
        "steps": n,
        "reward_by_step": [round(one["reward_mean"], 3) for one in metrics],
        "mixed_groups": 1 - sum(one["groups_zero_std"] for one in metrics) / groups,
        "tokens_trained_a_step": round(sum(one["tokens_trained"] for one in metrics) / n),
        "seconds_a_step": {
            phase: round(sum(one["seconds"][phase] for one in lines) / n, 1) for phase in lines[0]["seconds"]
        },
    }


def _cpu() -> float:
    """Seconds of CPU that processes which this one started have taken, user and system."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run every setting with every seed, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("policy")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SETTINGS)} (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--questions", type=int, default=147)
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in SETTINGS]:
        parser.error(f"no setting is called {unknown[0]!r}: choose from {', '.join(SETTINGS)}")
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for name in given.names or SETTINGS:
            for seed in given.seeds:
                policy = str(Path(given.policy).resolve())
                run = train(policy, name, seed, given.steps, given.questions, Path(folder))
                print(json.dumps(run), file=sys.stderr, flush=True)
                runs.append(run)
    print(json.dumps({"runs": runs}))


if __name__ == "__main__":
    main()
