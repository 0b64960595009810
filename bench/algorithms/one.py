"""One run of the comparison: evaluate, train with one recipe, evaluate. The last line is one JSON object.

    python bench/algorithms/one.py --task calc_x --recipe grpo --seed 1

Every recipe gets the same number of rollouts a step, as groups of ``GROUP``, or as tasks of one rollout each
if it compares no groups. ``--stored`` names the folder of a run whose rollouts ``sft``, ``rejection`` and
``dpo`` learn from; they make as many optimizer steps. Both evaluations are of the same held-out tasks. Where
the start policy plays legal moves at random (werewolf), evaluations sample, as training does; else they are
greedy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.stored.learning import stored_recipe
from agentlightning.cli.config_options import read
from agentlightning.recipes import get
from agentlightning.train.algorithm import algorithm_of
from agentlightning.train.configured import configure
from agentlightning.train.fields import from_fields
from agentlightning.types import Evaluation, Recipe

ROOT = Path(__file__).resolve().parents[2]
STORED: dict[str, dict[str, Any]] = {"sft": {"minimum": 1.0}, "rejection": {"best": 2}, "dpo": {"beta": 0.1}}
"""Algorithms over stored rollouts, with their settings: what won, the two best of each group, pairs."""
STORED_BATCH = 16
"""Rollouts, or pairs, of an optimizer step."""
GROUP = 8
"""Rollouts of a group, for recipes that compare the rollouts of a task."""


@dataclass(frozen=True)
class Task:
    """An agent with tasks and a start policy, trained with the learning rate of its example."""

    config: Path
    steps: int
    rollouts: int
    """Of a step, for every recipe."""
    held_out: int
    greedy: bool
    """Whether evaluations are greedy."""


TASKS = {
    "calc_x": Task(ROOT / "examples" / "calc_x" / "cpu.yaml", 16, 64, 128, True),
    "werewolf": Task(ROOT / "examples" / "werewolf" / "cpu.yaml", 12, 32, 128, False),
}


def recipe_of(name: str) -> Recipe:
    """The recipe by name, with the group size of this comparison."""
    recipe = get(name)
    return get(name, group_size=GROUP) if recipe.group_size > 1 else recipe


def sets_of(task: Task, recipe: Recipe, seed: int, output: Path) -> list[str]:
    """What differs from the example's own configuration."""
    return [
        f"training.steps={task.steps}",
        f"training.batch_size={task.rollouts // recipe.group_size}",
        f"training.seed={seed}",
        f"environment.val.args.{'limit' if task.greedy else 'n'}={task.held_out}",
        "backend.options.threads=1",
        "backend.options.engine_threads=1",
        f"output={output}",
        "trackers=[files]",
    ]


async def measure(context: Context, tasks: Any, name: str, greedy: bool) -> Evaluation:
    """An evaluation of the present policy on the held-out tasks."""
    return await context.evaluate(tasks, name=name, greedy=greedy)


async def one(task: Task, name: str, seed: int, output: Path, stored: str | None) -> dict[str, Any]:
    """Evaluate, train, evaluate, in one run."""
    recipe = stored_recipe(name) if name in STORED else recipe_of(name)
    config = from_fields({"recipe": {}}, read(task.config, sets_of(task, recipe, seed, output)))
    trainer, agent, train, val = configure(config)
    trainer.algorithm = name if name in STORED else recipe
    if name in STORED:
        trainer.settings = {"runs": [stored], **STORED[name]}
        trainer.batch_size = STORED_BATCH
    async with trainer.session(agent, train, val) as context:
        before = await measure(context, val, "before", task.greedy)
        context.val = ()
        algorithm = algorithm_of(trainer.config, trainer.plugins, trainer)
        summary = await context.guard(algorithm.run(context))
        after = await measure(context, val, "after", task.greedy)
        steps = await context.store.query_steps(context.run_id)
        store = context.folder
    return result(before, after, summary, steps, str(store))


def result(
    before: Evaluation, after: Evaluation, summary: dict[str, Any], steps: list[Any], folder: str
) -> dict[str, Any]:
    """The last line."""
    curve = [round(step.metrics.get("reward_mean", float("nan")), 4) for step in steps]
    return {
        "before": before.reward,
        "after": after.reward,
        "ci_before": before.ci and list(before.ci),
        "ci_after": after.ci and list(after.ci),
        "n": after.n,
        "failed": [before.failed, after.failed],
        "curve": curve,
        "train_seconds": summary["train_seconds"],
        "tokens_trained": summary["totals"]["tokens_trained"],
        "folder": folder,
        "left_out": summary.get("stored", {}).get("left_out", {}),
        "items": summary.get("stored", {}).get("items"),
    }


def main() -> None:
    """Run one and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--stored", help="folder of the run that sft, rejection and dpo learn from")
    parser.add_argument("--keep", type=Path, help="file that the last line is also written to")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench-algorithms")
    asked = parser.parse_args()
    found = asyncio.run(one(TASKS[asked.task], asked.recipe, asked.seed, asked.output, asked.stored))
    line = json.dumps({"task": asked.task, "recipe": asked.recipe, "seed": asked.seed, **found})
    if asked.keep:
        asked.keep.write_text(line + "\n")
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
