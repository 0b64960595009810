"""A second skill, by commands alone: the base model, fine-tuned, then reinforced (``make svamp-real``).

    python examples/word_problems/demo.py [--policy smollm2] [--seed N] [--epochs N] [--steps N] [--limit N]

Every part is an ``agl`` command, printed before it runs: ``policy fetch``, ``eval`` of the base model with
four solved examples, ``sft`` on the training split, ``eval``, ``train`` by reward, ``eval``. All evaluations
are greedy, on the test split of SVAMP and on the one-step problems of GSM8K. The last line is one JSON
object; the exit status is 1 if a call was not captured exactly.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from demo_commands import Commands  # noqa: E402

from agentlightning.algorithms.intervals import mean_interval  # noqa: E402
from agentlightning.types.base import LEARNED_NOTHING  # noqa: E402
from word_problems.baselines import BASELINES, rewards  # noqa: E402
from word_problems.problems import WordProblem, gsm8k_one_step, load  # noqa: E402

CONFIG = HERE / "cpu.yaml"
SETS = {
    "svamp": "{target: word_problems.problems:load, args: {split: test}}",
    "gsm8k": "{target: word_problems.problems:gsm8k_one_step}",
}
"""Held-out sets by name, as ``environment.val`` of a configuration."""
STAGES = {"base": "base model, 4 examples", "sft": "fine-tuned", "sft_rl": "fine-tuned, then reward"}


class Evaluations(Commands):
    """The commands of this demo."""

    def evaluate(self, stage: str, policy: str, limit: int | None, *sets: str) -> dict[str, dict[str, Any]]:
        """Return the evaluation of a policy on each held-out set."""
        agent = "solve_few_shot" if stage == "base" else "solve"
        few = ("--limit", str(limit)) if limit else ()
        found = {}
        for name, val in SETS.items():
            given = (f"agent.target=word_problems.agent:{agent}", f"environment.val={val}", *sets)
            options = [word for value in given for word in ("--set", value)]
            words = ("eval", "--config", str(CONFIG), "--policy", policy, *few, *options)
            found[name] = json.loads(self.agl("evaluations", *words))
        return found


def baselines(limit: int | None) -> dict[str, dict[str, Any]]:
    """Return the reward of each scripted policy on each held-out set, with its interval."""
    tasks = {"svamp": load("test", limit=limit), "gsm8k": gsm8k_one_step(limit)}
    return {
        name: {kind: scored(rewards(factory, each), each) for kind, each in tasks.items()}
        for name, factory in BASELINES.items()
    }


def scored(values: Sequence[float], tasks: Sequence[WordProblem]) -> dict[str, Any]:
    """Return the mean of rewards, their 95 % interval over the tasks' stories, and their number."""
    ci = mean_interval(values, [task["story"] for task in tasks], "stories").ends
    return {"reward": sum(values) / len(values), "ci": ci, "n": len(values)}


def table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table of everyone's rewards. ``found``: who → held-out set → evaluation."""
    out = Table(title="held-out problems answered (95 % interval)", title_justify="left")
    out.add_column("")
    for name in SETS:
        out.add_column(name, justify="right")
    for who, evaluations in found.items():
        cells = []
        for name in SETS:
            low, high = evaluations[name]["ci"]
            cells.append(f"{evaluations[name]['reward']:.3f} ({low:.2f}–{high:.2f})")
        out.add_row(STAGES.get(who, who.replace("_", " ")), *cells)
    return out


def figures(found: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return what the last line says of a held-out set."""
    return {
        **{stage: found[stage][name]["reward"] for stage in STAGES},
        "ci": {stage: found[stage][name]["ci"] for stage in STAGES},
        "n": found["base"][name]["n"],
        "baselines": {who: {key: found[who][name][key] for key in ("reward", "ci")} for who in BASELINES},
    }


def steps_of(run: Path) -> int:
    """Return the number of steps that a run trained."""
    return int(json.loads((run / "summary.json").read_text(encoding="utf-8"))["steps"])


def main() -> int:
    """Fetch, evaluate, fine-tune, evaluate, reinforce, evaluate, print."""
    parser = argparse.ArgumentParser(prog="demo.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", default="smollm2", help="the base model: a name or a folder")
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "runs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=3, help="of the fine-tuning")
    parser.add_argument("--lr", type=float, default=1e-4, help="of the fine-tuning")
    parser.add_argument("--steps", type=int, help="of the reinforcement (default: cpu.yaml)")
    parser.add_argument("--limit", type=int, help="evaluate on so many problems of each set (default: all)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of `agl train`")
    given = parser.parse_args()
    began, run = time.perf_counter(), Evaluations()
    output = given.output.resolve()
    sets = [f"output={output}", *given.set]

    base = run.agl("fetch", "policy", "fetch", given.policy)
    found = {**baselines(given.limit), "base": run.evaluate("base", base, given.limit, *sets)}
    tuned = output / f"word_problems-sft-{time.strftime('%Y%m%d-%H%M%S')}"
    sft = json.loads(
        run.agl(
            "sft", "sft", "--policy", base, "--output", str(tuned), "--data", "word_problems.chats:train",
            "--val", "word_problems.chats:val", "--epochs", str(given.epochs), "--lr", str(given.lr),
            "--seed", str(given.seed), "--json",
        )
    )  # fmt: skip
    found["sft"] = run.evaluate("sft", str(tuned), given.limit, *sets)
    steps = ("--steps", str(given.steps)) if given.steps is not None else ()
    options = [word for value in (f"backend.policy={tuned}", *sets) for word in ("--set", value)]
    words = ("train", "--config", str(CONFIG), "--seed", str(given.seed), *steps, *options)
    trained = json.loads(run.agl("rl", *words, allowed=[LEARNED_NOTHING]))
    policy = output / trained["run_id"] / "policy"
    found["sft_rl"] = run.evaluate("sft_rl", str(policy), given.limit, *sets)

    Console(stderr=True, width=100).print(table(found))
    evaluations = [one for stage in STAGES for one in found[stage].values()]
    made = int(trained["calls"] + sum(one["calls_made"] for one in evaluations))
    exact = int(trained["calls_exact"] + sum(one["calls_exact"] for one in evaluations))
    result = {
        **figures(found, "svamp"),
        "gsm8k_one_step": figures(found, "gsm8k"),
        "validation": {"sft": trained["reward_before"], "sft_rl": trained["reward_after"]},
        "rl_steps": steps_of(output / trained["run_id"]),
        "sft_settings": {key: sft[key] for key in ("chats", "epochs", "lr", "steps", "loss", "val_losses")},
        "calls": made,
        "calls_exact": exact,
        "logprob_gap_max": trained["logprob_gap_max"],
        "seed": given.seed,
        "run_id": trained["run_id"],
        "seconds": {**run.seconds, "total": round(time.perf_counter() - began, 1)},
    }
    print(json.dumps(result), flush=True)
    return 0 if made == exact else 1


if __name__ == "__main__":
    sys.exit(main())
