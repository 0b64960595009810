"""docs/algorithms.md, from the recipes' docstrings and values, the algorithms' specs, and the drivers."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import agl_distill.plugin
import agl_local.plugin
import agl_verl.plugin
import agl_verl.supported_fields
from agentlightning.credit.checks import check_supported_fields
from agentlightning.plugins import manager
from agentlightning.recipes import PAPERS, RECIPES, RecipeFactory
from agentlightning.specs import DriverSpec
from agentlightning.types import Recipe, UsageError
from agl_distill.recipe import distill
from agl_local.supported_fields import refuse as local_refuses
from agl_verl.pass_at_k import GRPOPassK
from agl_verl.ppo import PPO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from algorithms.summary import table  # noqa: E402

DRIVERS = (
    (agl_local.plugin.agl_drivers()[0], local_refuses),
    (agl_verl.plugin.agl_drivers()[0], agl_verl.supported_fields.refuse),
)
"""Each driver's spec, and the function that raises for a recipe that it would not carry out."""

OF_VERL: dict[str, RecipeFactory] = {"grpo_passk": GRPOPassK, "ppo": PPO}
"""Recipes that agl-verl brings."""
SHOWN: dict[str, RecipeFactory] = dict(sorted({**RECIPES, **OF_VERL, "distill": distill}.items()))
BROUGHT = (agl_distill.plugin, agl_verl.plugin)
"""Plugins that bring recipes."""


def page() -> str:
    """The whole page."""
    loaded = manager.build([agl_local.plugin], discover=False)
    loops = [spec for name, spec in loaded.algorithms.items() if name not in ("rl", "baseline")]
    return "\n".join(
        [
            "# Algorithms",
            "",
            "To choose how a policy learns, name an algorithm; `recipe` overrides its fields:",
            "",
            "```yaml",
            "training: {algorithm: grpo, recipe: {group_size: 16}}",
            "```",
            "",
            "The configuration reference has every field, under *training.recipe*. A field that a driver",
            "does not implement ends the run before it begins.",
            "",
            "| recipe | paper | needs | `local` | `verl` |",
            "|---|---|---|---|---|",
            *(_row(name) for name in SHOWN),
            "",
            "Begin with `grpo`. Where rollouts are expensive, take `cispo`, or `grpo` with `minibatches: 4`:",
            "both train more on the same rollouts. `ppo` needs the driver `verl`. Without a reward, let the",
            "[group or a judge](rewards.md#no-reward-let-the-group-a-judge-or-a-rubric-say) say what is",
            "better, or by `distill` [a teacher](rewards.md#distil-a-big-agent-into-a-small-one).",
            "[Measured](contributing/algorithms.md): what each did with one budget.",
            "",
            "The formulas below are the docstrings of the code (`python scripts/docs.py`). Fields that are",
            "not shown have their defaults.",
            "",
            *(line for name in SHOWN for line in _section(name)),
            *_stored(loops),
        ]
    )


READING = """\
**How to read it.** Intervals are of the evaluations of all seeds together (Wilson), as if these were
independent. The held-out tasks are the same for every seed, and so is the start policy: recipes whose
intervals overlap are not told apart. *Learned* says that the interval lies above that of the start policy.

**What makes the difference on `calc_x`** is how much is trained of the same rollouts. `cispo` and `gspo`
make four optimizer steps a batch, all others one; `grpo-4`, GRPO with four, is their control. `reinforce++`
compares tasks with each other, so every rollout is trained, where recipes by groups lose the groups whose
rollouts all earn the same. `grpo`, `rloo`, `dr_grpo`, `dapo`, `gigpo` and `flow_grpo` differ in the weights
of tokens and the scale of advantages; with short answers these give nearly the same gradient, and AdamW
undoes most of the rest: they are one result. `sft`, `rejection` and `dpo` make as many steps of 16 items
over what GRPO's run left.

**On `werewolf`** evaluations are sampled, 288 games for each recipe. All learn but `gspo`, and the reason is
its clip range: the paper's 0.0003 is for a mean over hundreds of tokens, and an answer has one or two here,
so 13 to 42 % of the tokens are clipped in a step. `gspo-wide`, the same with GRPO's range of 0.2, clips
almost none and learns. On `calc_x`, too, it ends higher: widen the range where answers are short.
"""


def measured() -> str:
    """The contributors' page of what `make bench-algorithms` found, from its recorded result."""
    recorded = json.loads((ROOT / "bench" / "results" / "algorithms.json").read_text(encoding="utf-8"))[
        "result"
    ]
    budgets = [
        f"`{task}`: {of['steps']} steps of {of['rollouts']} rollouts, groups of {of['group']}, "
        f"{of['held_out']} held-out tasks, {'greedy' if of['greedy'] else 'sampled'}"
        for task, of in sorted(recorded["budgets"].items())
    ]
    missing = recorded["wanted"] - recorded["finished"]
    gone = f" {missing} of {recorded['wanted']} runs are missing; see the seeds." if missing else ""
    lines = [
        "# Algorithms, measured",
        "",
        "`make bench-algorithms` trains every recipe with the same budget of rollouts, and `sft`,",
        "`rejection`, `dpo` on those that GRPO's run stored",
        "([results](../../bench/results/algorithms.json)).",
        "",
        "![held-out reward of each recipe before and after training](../images/algorithms.svg)",
        "",
        f"Every recipe has the same budget of rollouts: {'; '.join(budgets)}. It is small on purpose: with a",
        f"larger one all recipes solve `calc_x`, and none differs.{gone}",
        "",
        *table(recorded["recipes"]).splitlines(),
        "",
        *READING.splitlines(),
    ]
    return "\n".join(lines) + "\n"


def _row(name: str) -> str:
    recipe = SHOWN[name]()
    cells = [_driver(recipe, spec, refuse) for spec, refuse in DRIVERS]
    return f"| [`{name}`](#{_anchor(name)}) | {_paper(name)} | {_needs(name, recipe)} | {' | '.join(cells)} |"


def _anchor(name: str) -> str:
    return name.replace("+", "")


def _paper(name: str) -> str:
    papers = PAPERS | {spec.name: spec.about for plugin in BROUGHT for spec in plugin.agl_recipes()}
    number = papers[name].removeprefix("arXiv ")
    return f"[{papers[name]}](https://arxiv.org/abs/{number})"


def _needs(name: str, recipe: Recipe) -> str:
    """What a run must bring, read off the recipe's fields."""
    needs = {
        "agl-distill, a teacher": name == "distill",
        "agl-verl": name in OF_VERL,
        "a value model": recipe.critic,
        f"groups of {recipe.group_size} rollouts": recipe.group_size > 1 and "batch" not in recipe.group_by,
        "several tasks in a step": recipe.baseline == "batch",
        "states that rollouts share": recipe.step_weight > 0,
        f"{recipe.minibatches} optimizer steps a batch": recipe.minibatches > 1,
    }
    return ", ".join(text for text, needed in needs.items() if needed) or "nothing"


def _driver(recipe: Recipe, spec: DriverSpec, refuse: Any) -> str:
    """``yes``, or the reason for which the driver refuses the recipe."""
    try:
        check_supported_fields(recipe, spec.name, spec.supported_fields, spec.unsupported_fields)
        refuse(recipe)
    except (UsageError, ValueError):
        reasons = [spec.unsupported_fields.get(field, field) for field in recipe.uses() if
                   field in spec.unsupported_fields]  # fmt: skip
        return f"no: {reasons[-1]}" if reasons else "no"
    return "yes"


def _section(name: str) -> list[str]:
    factory = SHOWN[name]
    source = Path(inspect.getfile(factory)).relative_to(ROOT)
    title, _, text = (inspect.getdoc(factory) or "").partition("\n\n")
    values = ", ".join(f"{k}={v!r}" for k, v in factory().uses().items())
    return [
        f"## {name}",
        "",
        _links(title),
        "",
        *_blocks(text),
        f"Values: `{values or 'the defaults'}` ([{source.name}](../{source})).",
        "",
    ]


def _blocks(text: str) -> list[str]:
    """Paragraphs of a docstring as Markdown: indented ones are formulas."""
    lines: list[str] = []
    for block in text.strip("\n").split("\n\n"):
        if block.startswith("    "):
            lines += ["```text", *(line[4:] for line in block.splitlines()), "```", ""]
        else:
            lines += [*_links(block).splitlines(), ""]
    return lines


def _links(text: str) -> str:
    return text.replace("``", "`")


def _stored(loops: list[Any]) -> list[str]:
    """The algorithms that are loops of their own."""
    if not loops:
        return []
    rows = [f"| `{spec.name}` | {spec.about} |" for spec in loops]
    return ["## Learning from stored rollouts", "", "| algorithm | what it does |", "|---|---|", *rows, ""]
