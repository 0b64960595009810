"""Makes runs of each kind and has the referee compute them again (``make truth``).

    python tests/referee/truth.py [--only "grpo lora"] [--folder FOLDER]

The runs are made by the command ``agl``, small, with the policy of ``examples/calc_x``. The last line is
JSON: ``{"runs", "values", "differences", …}``; the status is 1 where something differs or was not judged.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from judge import Judgement, judge_comparison, judge_rescoring, judge_run
from stored import Run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
POLICY = EXAMPLES / "calc_x" / "policy"
OPTIONS = {"lr": 3e-4, "threads": 1, "engine_threads": 1, "save_every": 1, "keep_checkpoints": 99}
BASE = {
    "training.steps": 2, "training.batch_size": 4, "training.recipe": {"group_size": 4},
    "training.evaluate_every": 1, "environment.val.limit": 16, "environment.headroom": {},
    "backend.options": {**OPTIONS, "max_num_seqs": 16, "max_len": 512},
}  # fmt: skip
CORRECTED = {"kind": "mask", "level": "sequence", "cap": 1.5, "threshold": 0.0}
RUNS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "async": {
        "training.steps": 3, "training.async_steps": 1,
        "training.recipe": {"group_size": 4, "max_staleness": 1, "importance_cap": 2.0, "epochs": 2,
                            "minibatches": 3, "correction": CORRECTED},
    },
    "dr_grpo": {"training.algorithm": "dr_grpo",
                "training.recipe": {"group_size": 4, "loss_divisor": 16.0, "minibatches": 4}},
    "lora": {"backend.options.lora": {"rank": 4, "alpha": 8}},
    "dpo": {"training.algorithm": "dpo", "training.recipe": {}, "training.settings": {"runs": ["grpo"]}},
    "sft": {"training.algorithm": "sft", "training.recipe": {},
            "training.settings": {"runs": ["grpo"], "rewards": "answered", "minimum": 0.5}},
    "pair": {
        "agent": {"target": "pair:play", "name": "play", "policies": {"first": "one", "second": "two"}},
        "environment": {"train": {"target": "calc_x.datasets:load",
                                  "args": {"spec": "generated:train", "limit": 40, "seed": 1}}},
        "backend.policy": {"one": {"path": str(POLICY)},
                           "two": {"path": str(POLICY), "options": {"lr": 6e-4}}},
        "training.evaluate_every": 0, "environment.val.limit": None, "environment.headroom": None,
    },
}  # fmt: skip
"""Name → what a run has of its own; ``None``: nothing there."""
FILES = {
    "grading.py": 'def answered(task, result):\n    return float("ANSWER" in result.answer)\n',
    "pair.py": """
import agentlightning as agl
from openai import AsyncOpenAI

@agl.rollout
async def play(task, llm):
    text = ""
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for agent in ("first", "second", "second"):
            with agl.tagged(agent=agent):
                asked = [{"role": "user", "content": f"{task['question']} {text}"}]
                reply = await client.chat.completions.create(model=llm.model, max_tokens=5, messages=asked)
            text += reply.choices[0].message.content or ""
    return float(sum(map(ord, text)) % 5)
""",
}
"""Programs of the user: a reward function, and an agent of two policies."""


def agl(folder: Path, *words: str) -> str:
    """Run the command and return the last line that it prints."""
    command = [sys.executable, "-m", "_agl_main", *words]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"agl {' '.join(words)} ended with {done.returncode}")
    return done.stdout.splitlines()[-1]


def make_run(folder: Path, name: str, **more: Any) -> Path:
    """Train a run of :data:`RUNS`, with settings that win."""
    given = {**BASE, "output": str(folder), "pythonpath": [str(EXAMPLES), str(folder)], **RUNS[name], **more}
    settings = [f"--set={key}={json.dumps(value)}" for key, value in given.items() if value is not None]
    config = EXAMPLES / "calc_x" / "cpu.yaml"
    agl(folder, "train", "--config", str(config), "--run", name, *settings)
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
        for name, text in FILES.items():
            (folder / name).write_text(text)
        found, runs, rescored = Judgement(), dict[str, Run](), None
        for name in asked.only.split():
            make_run(folder, name)
            if name == "grpo":
                words = ("--reward", "grading:answered", "--name", "answered", "--json")
                rescored = json.loads(agl(folder, "rescore", name, *words))
            runs[name] = judge_run(folder / name, found)
            print(f"{name}: {found.values.total()} values so far", file=sys.stderr)
        if rescored is not None:
            judge_rescoring(rescored, runs["grpo"], found)
        if "grpo" in runs and "lora" in runs:
            said = json.loads(agl(folder, "compare", "grpo", "lora", "--json"))
            judge_comparison(said, runs["grpo"], runs["lora"], found)
        print(json.dumps(found.report(len(runs))))
    return 1 if found.differences or found.unjudged else 0


if __name__ == "__main__":
    sys.exit(main())
