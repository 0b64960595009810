"""One run of the comparison: train with one recipe, then evaluate. The last line is one JSON object.

    python bench/algorithms/one.py --task calc_x --recipe grpo --seed 1

Every recipe gets the same number of rollouts a step, as groups of ``GROUP``, or as tasks of one rollout each
if it compares no groups. ``--stored`` names the folder of a run whose rollouts ``sft``, ``rejection`` and
``dpo`` learn from; they make as many optimizer steps. ``--recipe start`` trains nothing: it evaluates the
policy that all others of this task and seed start from. All evaluations are of the same held-out tasks. Where
the start policy plays legal moves at random (werewolf), evaluations sample, as training does; else they are
greedy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentlightning.cli.options import read
from agentlightning.recipes import get
from agentlightning.train.config import from_fields
from agentlightning.train.configured import configure
from agentlightning.train.trainer import algorithm_of
from agentlightning.types import Evaluation, Recipe
from agl_audit.stored.learning import stored_recipe
from algorithms.summary import START

ROOT = Path(__file__).resolve().parents[2]
STORED: dict[str, dict[str, Any]] = {"sft": {"minimum": 1.0}, "rejection": {"best": 2}, "dpo": {"beta": 0.1}}
"""Algorithms over stored rollouts, with their settings: what won, the two best of each group, pairs."""
STORED_BATCH = 16
"""Rollouts, or pairs, of an optimizer step."""
GROUP = 8
"""Rollouts of a group, for recipes that compare the rollouts of a task."""


CONTROLS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo-4": ("grpo", {"minibatches": 4}),
    "gspo-wide": ("gspo", {"clip_low": 0.2, "clip_high": 0.2}),
}
"""Recipes with a field changed: GRPO with as many optimizer steps a batch as CISPO and GSPO; GSPO with GRPO's
clip range, for answers of a few tokens."""


@dataclass(frozen=True)
class Task:
    """An agent with tasks and a start policy, and the budget that every recipe gets."""

    config: str
    """The example's configuration, in the repository."""
    steps: int
    rollouts: int
    """Of a step, for every recipe."""
    held_out: int
    greedy: bool
    """Whether evaluations are greedy."""
    sets: tuple[str, ...] = ()
    """What else differs from the example's configuration."""


TASKS = {
    "calc_x": Task("examples/calc_x/cpu.yaml", 6, 32, 96, True, ("environment.val.args.limit=96",)),
    "werewolf": Task(
        "examples/werewolf/cpu.yaml",
        10,
        32,
        96,
        False,
        (
            "environment.train.args.preset=mini5",
            "environment.val.args.preset=mini5",
            "environment.val.args.n=96",
        ),
    ),
}
"""``werewolf``: the game of five, whose one wolf decides about four times a game."""


def settings(name: str) -> dict[str, Any]:
    """Everything that a kept result depends on besides recipe and seed."""
    return json.loads(
        json.dumps({**asdict(TASKS[name]), "group": GROUP, "batch": STORED_BATCH, "stored": STORED})
    )


def recipe_of(name: str) -> Recipe:
    """The recipe by name, with the group size of this comparison."""
    base, fields = CONTROLS.get(name, (name, {}))
    recipe = get(base)
    return get(base, group_size=GROUP, **fields) if recipe.group_size > 1 else recipe


def sets_of(task: Task, recipe: Recipe, seed: int, output: Path) -> list[str]:
    """What differs from the example's own configuration."""
    return [
        f"training.steps={task.steps}",
        f"training.batch_size={task.rollouts // recipe.group_size}",
        f"training.seed={seed}",
        "backend.options.threads=1",
        "backend.options.engine_threads=1",
        "backend.options.engine=thread",
        f"output={output}",
        "trackers=[files]",
        *task.sets,
    ]


async def one(name: str, recipe_name: str, seed: int, output: Path, stored: str | None) -> dict[str, Any]:
    """Train and evaluate, in one run; return what is kept of it."""
    task = TASKS[name]
    learns_from_stored, started = recipe_name in STORED, time.monotonic()
    recipe = (
        stored_recipe(recipe_name) if learns_from_stored else recipe_of(recipe_name.replace(START, "grpo"))
    )
    config = from_fields({"recipe": {}}, read(ROOT / task.config, sets_of(task, recipe, seed, output)))
    trainer, agent, train, val = configure(config)
    chosen: dict[str, Any] = {"algorithm": recipe_name if learns_from_stored else recipe}
    if learns_from_stored:
        settings_of_it = {"runs": [stored], **STORED[recipe_name]}
        chosen |= {"settings": settings_of_it, "batch_size": STORED_BATCH}
    trainer.config = from_fields(chosen, trainer.config)
    async with trainer.session(agent, train, val) as context:
        context.val, summary = (), {}
        if recipe_name != START:
            algorithm = algorithm_of(trainer.config, trainer.plugins, trainer)
            summary = await context.guard(algorithm.run(context))
        found = await context.evaluate(val, name="after", greedy=task.greedy)
        steps = await context.store.query_steps(context.run_id)
        folder = context.folder
    about = {"task": name, "recipe": recipe_name, "seed": seed, "settings": settings(name)}
    return {
        **about,
        **result(found, summary, steps),
        "folder": str(folder),
        "seconds": round(time.monotonic() - started, 1),
    }


def result(found: Evaluation, summary: dict[str, Any], steps: list[Any]) -> dict[str, Any]:
    """The figures of a run."""
    return {
        "reward": found.reward,
        "ci": found.ci and list(found.ci),
        "n": found.n,
        "failed": found.failed,
        "curve": [round(step.metrics.get("reward_mean", float("nan")), 4) for step in steps],
        "tokens_trained": summary["totals"]["tokens_trained"] if summary else 0,
        "not_trained": summary.get("failures", {}),
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
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "bench-algorithms")
    asked = parser.parse_args()
    print(
        json.dumps(asyncio.run(one(asked.task, asked.recipe, asked.seed, asked.output, asked.stored))),
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
