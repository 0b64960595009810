"""LoRA over the base as it is, in 8 and in 4 bits: does the agent learn, and is every call exact?

    python bench/quantized.py [--example router] [--steps N] [--seed 1] [--set KEY=VALUE …]
    (``make test-quantised``)

The agent of calc_x, or the router with its pretrained model, is trained four times with one seed, each time
by ``agl train``: with a float32 engine, with a bfloat16 one, and over a base in int8 and in nf4, here called
``int4``. The last line is one JSON object: the held-out reward of each after training, ``before`` by kind,
``logprob_gap_max`` by kind (the largest difference of a logprob between engine and trainer in any step), and
the ``calls`` of all runs, of which ``calls_exact`` had the engine's own token ids and logprobs. The exit
status is 1 where a call was not exact, or where with :data:`LONG` steps or more a reward did not rise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentlightning.types.base import LEARNED_NOTHING

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES: dict[str, tuple[float, int, list[str]]] = {
    "calc_x": (1e-3, 12, []),
    "router": (5e-4, 24, ["backend.options.freeze=[]"]),
}
"""Name of an example → learning rate, steps, and what LoRA changes in its ``cpu.yaml``."""
KINDS: dict[str, dict[str, str]] = {
    "float32": {},
    "bf16": {"dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
    "int4": {"quantize": "nf4"},
}
"""Name of a run → its options."""
LORA = {"rank": 8, "alpha": 16}
LONG = 6


def train(example: str, kind: str, steps: int | None, seed: int, more: Sequence[str]) -> dict[str, Any]:
    """The last line of one run. Raises CalledProcessError for one that fails."""
    lr, default, own = EXAMPLES[example]
    options = {"lora": LORA, "lr": lr, **KINDS[kind]}
    sets = [f"backend.options.{name}={json.dumps(value)}" for name, value in options.items()]
    sets += [f"training.steps={steps or default}", "training.evaluate_sampled=false"]
    sets += ["environment.headroom={}", *own, *more]
    config = f"examples/{example}/cpu.yaml"
    command = [str(Path(sys.executable).parent / "agl"), "train", "--config", config, "--seed", str(seed)]
    command += [word for one in sets for word in ("--set", one)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8")
    if done.returncode != LEARNED_NOTHING:  # the rewards will show that
        done.check_returncode()
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    """Train with each kind, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--example", choices=EXAMPLES, default="calc_x")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], help="a setting of the runs, as of agl train")
    given = parser.parse_args()
    runs: dict[str, dict[str, Any]] = {}
    for kind in KINDS:
        print(f"\n── {kind} ──", file=sys.stderr, flush=True)
        runs[kind] = train(given.example, kind, given.steps, given.seed, given.set)
    calls, exact = (int(sum(run[name] for run in runs.values())) for name in ("calls", "calls_exact"))
    line = {
        **{kind: run["reward_after"] for kind, run in runs.items()},
        "before": {kind: run["reward_before"] for kind, run in runs.items()},
        "logprob_gap_max": {kind: run["logprob_gap_max"] for kind, run in runs.items()},
        "calls": calls,
        "calls_exact": exact,
    }
    print(json.dumps(line))
    rose = all(run["reward_after"] > run["reward_before"] for run in runs.values())
    short = given.steps is not None and given.steps < LONG
    return 0 if calls == exact and (rose or short) else 1


if __name__ == "__main__":
    sys.exit(main())
