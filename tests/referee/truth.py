"""Makes runs of each kind and has the referee compute them again (``make truth``).

    python tests/referee/truth.py [--only "grpo lora"] [--folder FOLDER]

The runs are made by the command ``agl``, small, with the policy of ``examples/calc_x``. The last line is
JSON: ``{"runs", "values", "differences", …}``; the status is 1 where something differs or was not judged.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from judge import Judgement, judge_comparison, judge_rescoring, judge_run
from stored import Run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
POLICY = EXAMPLES / "calc_x" / "policy"
PROGRAMS = Path(__file__).parent / "programs"
"""What users write: a reward function, and agents."""
OPTIONS = {"lr": 3e-4, "threads": 1, "engine_threads": 1, "save_every": 1, "keep_checkpoints": 99}
BASE = {
    "training.steps": 2, "training.batch_size": 4, "training.recipe": {"group_size": 4},
    "training.evaluate_every": 1, "environment.val.limit": 16, "environment.headroom": {},
    "backend.options": {**OPTIONS, "max_num_seqs": 16, "max_len": 512},
    "pythonpath": [str(EXAMPLES), str(PROGRAMS)],
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "async": {
        "training.steps": 3, "training.async_steps": 1, "training.recipe.max_staleness": 1,
        "training.recipe.importance_cap": 2.0, "training.recipe.epochs": 2, "training.recipe.minibatches": 3,
        "training.recipe.correction": {"kind": "mask", "level": "sequence", "cap": 1.5, "threshold": 0.0},
    },
    "dr_grpo": {"training.algorithm": "dr_grpo", "agent.target": "pair:brief",
                "training.recipe.loss_divisor": 16.0, "training.recipe.minibatches": 4},
    "lora": {"backend.options.lora": {"rank": 4, "alpha": 8}},
    "dpo": {"training.algorithm": "dpo", "training.recipe": {}, "training.settings": {"runs": ["grpo"]}},
    "sft": {"training.algorithm": "sft", "training.recipe": {},
            "training.settings": {"runs": ["grpo"], "rewards": "answered", "minimum": 0.5}},
    "pair": {
        "agent": {"target": "pair:play", "name": "play", "policies": {"first": "one", "second": "two"}},
        "backend.policy": {"one": {"path": str(POLICY)},
                           "two": {"path": str(POLICY), "options": {"lr": 6e-4}}},
        "evaluation.cluster": "kind", "training.failure": {"agent-raised": 0.5},
    },
}  # fmt: skip
"""Name → what a run has of its own."""
RESCORING = ("--reward", "grading:answered", "--name", "answered", "--json")


def agl(folder: Path, *words: str) -> str:
    """Run the command and return the last line that it prints."""
    command = [sys.executable, "-m", "_agl_main", *words]
    own = {**os.environ, "PYTHONPATH": str(PROGRAMS)}
    done = subprocess.run(command, cwd=folder, env=own, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"agl {' '.join(words)} ended with {done.returncode}")
    return done.stdout.splitlines()[-1]


def make_run(folder: Path, name: str, **more: Any) -> Path:
    """Train a run of :data:`RUNS`, with settings that win."""
    given = {**BASE, "output": str(folder), **RUNS[name], **more}
    settings = [f"--set={key}={json.dumps(value)}" for key, value in given.items()]
    agl(folder, "train", "--config", str(EXAMPLES / "calc_x" / "cpu.yaml"), "--run", name, *settings)
    return folder / name


def main() -> int:
    """Make the runs, judge them, and print what was found."""
    parser = argparse.ArgumentParser(description="Runs, computed again by other code.")
    parser.add_argument("--only", default=" ".join(RUNS), help="some of: " + " ".join(RUNS))
    parser.add_argument("--folder", type=Path, help="where the runs are kept; default: nowhere")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="truth-") as scratch:
        folder = (asked.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        found, runs = Judgement(), dict[str, Run]()
        for name in asked.only.split():
            make_run(folder, name)
            rescored = agl(folder, "rescore", name, *RESCORING) if name == "grpo" else None
            runs[name] = judge_run(folder / name, found)
            if rescored is not None:
                judge_rescoring(json.loads(rescored), runs[name], found)
            print(f"{name}: {found.values.total()} values so far", file=sys.stderr)
        if "grpo" in runs and "lora" in runs:
            said = json.loads(agl(folder, "compare", "grpo", "lora", "--json"))
            judge_comparison(said, runs["grpo"], runs["lora"], found)
        print(json.dumps(found.report(len(runs))))
    return 1 if found.differences or found.unjudged else 0


if __name__ == "__main__":
    sys.exit(main())
