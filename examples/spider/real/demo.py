"""A pretrained model learns to write SQL for databases that it never saw (``make spider-real``).

    python examples/spider/real/demo.py [--seed N] [--steps N] [--limit N] [--remake] [--set KEY=VALUE ...]

Every part is an ``agl`` command, printed before it runs: ``policy fetch`` of the base model and of its
adapter, ``eval`` of both, ``train`` by what queries return, ``eval``. ``--remake`` begins with
``agl sft``, which makes the adapter. All evaluations are greedy, on the development questions of Spider that
are here; no setting was chosen on them. Intervals are of 95 % and over databases. The last line is one JSON
object; the exit status is 1 if a call was not captured exactly.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1]
sys.path.insert(0, str(EXAMPLES))

from demo_commands import Commands  # noqa: E402

from agentlightning.types.base import LEARNED_NOTHING  # noqa: E402
from router.memory import PeakMemory  # noqa: E402
from spider.real.baseline import rewards as baseline_rewards  # noqa: E402
from spider.real.outcomes import Outcome, gain, interval, mean, outcomes, summary  # noqa: E402
from spider.real.tasks import load  # noqa: E402

CONFIG = HERE / "cpu.yaml"
ADAPTER = HERE / "adapter"
SFT = (
    "--data", "spider.real.chats:train", "--val", "spider.real.chats:val", "--lora", "16", "--lr", "1e-3",
    "--epochs", "3", "--dtype", "bfloat16", "--batch-size", "32", "--group", "8", "--max-len", "416",
    "--micro-batch-tokens", "1400",
)  # fmt: skip
"""How the adapter was made."""


class Evaluations(Commands):
    """The commands of this demo. Runs go into the folder ``output``; calls and exact calls are counted."""

    def __init__(self, output: Path, sets: Sequence[str]) -> None:
        super().__init__()
        self.output, self.sets = output, sets
        self.calls = self.exact = 0

    def run(self, stage: str, command: str, *words: str, more: Sequence[str] = ()) -> dict[str, Any]:
        """Run ``agl eval`` or ``agl train`` by the example's configuration and return its last line."""
        given = [word for one in (f"output={self.output}", *self.sets, *more) for word in ("--set", one)]
        line = self.agl(stage, command, "--config", str(CONFIG), *words, *given, allowed=[LEARNED_NOTHING])
        found: dict[str, Any] = json.loads(line)
        self.calls += int(found.get("calls", found.get("calls_made", 0)))
        self.exact += int(found["calls_exact"])
        return found

    def evaluate(self, agent: str, policy: str, limit: int | None) -> list[Outcome]:
        """Return what a policy did with the development questions."""
        few = f", limit: {limit}" if limit else ""
        val = f"environment.val={{target: spider.real.tasks:load, args: {{spec: test{few}}}}}"
        target = f"agent.target=spider.real.agent:{agent}"
        found = self.run("evaluations", "eval", "--policy", policy, more=(target, val))
        return asyncio.run(outcomes(str(self.output / found["run_id"])))


def figures(found: dict[str, list[Outcome]]) -> dict[str, Any]:
    """Return what the last line says of the evaluations by stage: base, sft, sft_rl."""
    last = found["sft_rl"]
    tasks = {task["id"]: task for task in load("test")}
    baseline = baseline_rewards([tasks[one.id] for one in last], load("train"))
    scripted = [baseline[one.id] for one in last]
    parts = {stage: summary(own) for stage, own in found.items()}
    return {
        **{stage: part["with_correction"] for stage, part in parts.items()},
        **{f"ci_{stage}": part["ci"] for stage, part in parts.items()},
        **gain(last, found["sft"]),
        "baseline": mean(scripted),
        "ci_baseline": interval(scripted, last),
        "one_shot": parts["sft_rl"]["one_shot"],
        "with_correction": parts["sft_rl"]["with_correction"],
        "n": len(last),
        "databases": len({one.db_id for one in last}),
        "stages": parts,
    }


def main() -> int:
    """Fetch, evaluate, train, evaluate, print."""
    parser = argparse.ArgumentParser(prog="demo.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=HERE.parents[2] / "runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, help="of the training by reward (default: cpu.yaml)")
    parser.add_argument("--limit", type=int, help="evaluate on so many questions (default: all)")
    parser.add_argument("--remake", action="store_true", help="make the adapter by agl sft first")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `agl train`")
    given = parser.parse_args()
    run, began = Evaluations(given.output.resolve(), given.set), time.perf_counter()
    with PeakMemory() as memory:
        base, adapter = run.agl("fetch", "policy", "fetch", "smollm2"), str(ADAPTER)
        if given.remake:
            words = ("--policy", "smollm2", "--output", str(run.output / "spider-adapter"))
            adapter = run.agl("sft", "sft", *words, *SFT)
        tuned = run.agl("fetch", "policy", "fetch", adapter)
        found = {"base": run.evaluate("shown", base, given.limit)}
        found["sft"] = run.evaluate("named", tuned, given.limit)
        steps = ("--steps", str(given.steps)) if given.steps is not None else ()
        trained = run.run(
            "train", "train", "--seed", str(given.seed), *steps, more=(f"backend.policy={tuned}",)
        )
        policy = str(run.output / trained["run_id"] / "policy")
        found["sft_rl"] = run.evaluate("named", policy, given.limit)
    line = {
        **figures(found),
        "selection": {"before": trained["reward_before"], "after": trained["reward_after"]},
        "train_seconds": trained["train_seconds"],
        "calls": run.calls,
        "calls_exact": run.exact,
        "logprob_gap_max": trained["logprob_gap_max"],
        "peak_mb": round(memory.megabytes),
        "seed": given.seed,
        "run_id": trained["run_id"],
        "seconds": {**run.seconds, "total": round(time.perf_counter() - began, 1)},
    }
    print(json.dumps(line), flush=True)
    return 0 if run.calls == run.exact else 1


if __name__ == "__main__":
    sys.exit(main())
