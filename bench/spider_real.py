"""The figures of examples/spider/real, recomputed from what its evaluations kept.

    python bench/spider_real.py

Reads ``bench/results/spider_real/*.jsonl`` (every question of an evaluation with its queries and what they
were worth) and ``examples/spider/real/solved.json``. The trick without a model is run anew. No model is
needed. The last line is one JSON object; intervals are of 95 % and over databases.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "bench" / "results" / "spider_real"
sys.path.insert(0, str(ROOT / "examples"))

from agentlightning.algorithms.intervals import mean_interval  # noqa: E402
from spider.questions import Question  # noqa: E402
from spider.real.baseline import rewards  # noqa: E402
from spider.real.outcomes import Outcome, gain, mean, read, summary  # noqa: E402
from spider.real.tasks import SOLVED, load  # noqa: E402

TRIED = (
    "right", "compared_2e-4", "compared", "all_weights", "right_5e-4", "right_5e-4_20_steps", "compared_5e-4",
    "right_1e-3", "write", "link",
)  # fmt: skip
"""Settings of training by results: their evaluations on ``choice``."""


def evaluation(found: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of one evaluation."""
    all_figures = summary(found)
    return {
        "n": len(found),
        "right": all_figures["with_correction"],
        "ci": all_figures["ci"],
        "first_runs": all_figures["first_runs"],
        "without_correction": all_figures["one_shot"],
        "corrected": all_figures["corrected"],
        "errors_of_the_first_query": all_figures["errors"],
        "calls": sum(1 + len(one.queries) for one in found),
    }


def trick(tasks: Sequence[Question], earned: dict[str, float]) -> dict[str, Any]:
    """Return the figures of the trick without a model on some questions."""
    values = [earned[task["id"]] for task in tasks]
    ci = mean_interval(values, [task["db_id"] for task in tasks], "db_id", shares=True).ends
    return {"n": len(tasks), "right": mean(values), "ci": ci}


def figures() -> dict[str, Any]:
    """Return all figures of the page."""
    found = {name: read(KEPT / f"{name}.jsonl") for name in ("base", "sft", "select_sft", "select_free")}
    sets = {spec: load(spec) for spec in ("test", "select")}
    train = load("train")
    earned = {spec: rewards(tasks, train) for spec, tasks in sets.items()}
    differences = [one.last - earned["test"][one.id] for one in found["sft"]]
    databases = [one.db_id for one in found["sft"]]
    tried = {name: read(KEPT / f"choice_{name}.jsonl") for name in TRIED}
    asked = {one.id for one in tried[TRIED[0]]}
    before = [one for one in found["select_sft"] if one.id in asked]
    return {
        **{name: evaluation(own) for name, own in found.items()},
        "trick": {spec: trick(tasks, earned[spec]) for spec, tasks in sets.items()},
        "against_trick": {
            "difference": mean(differences),
            "ci": mean_interval(differences, databases, "db_id", shares=False).ends,
        },
        "choice": {
            "before": summary(before)["with_correction"],
            **{name: {**evaluation(own), **gain(own, before)} for name, own in tried.items()},
        },
        "test": trained(found["sft"]),
        "solved": {spec: solved(load(spec)) for spec in ("train", "practice")},
    }


def trained(before: Sequence[Outcome]) -> dict[str, Any]:
    """Return the figures of training by results from ``before`` on the test: by seed, and of the mean."""
    runs = json.loads((KEPT / "seeds.json").read_text(encoding="utf-8"))
    after = {seed: read(KEPT / f"test_seed_{seed}.jsonl") for seed in runs}
    means = [mean([own.last for own in seeds]) for seeds in zip(*after.values(), strict=True)]
    differences = [now - one.last for now, one in zip(means, before, strict=True)]
    databases = [one.db_id for one in before]
    return {
        "seeds": {
            seed: {**evaluation(own), **gain(own, before), **runs[seed]} for seed, own in after.items()
        },
        "right": mean(means),
        "gain": mean(differences),
        "ci_gain": mean_interval(differences, databases, "db_id", shares=False).ends,
    }


def solved(tasks: Sequence[Question]) -> dict[str, Any]:
    """Return how often the fine-tuned policy solved those of the questions that it was asked."""
    rates = json.loads(SOLVED.read_text(encoding="utf-8"))
    counts: list[tuple[int, int]] = [rates[task["id"]] for task in tasks if task["id"] in rates]
    return {
        "questions": len(counts),
        "pass@1": sum(right for right, _ in counts) / sum(tried for _, tried in counts),
        "pass@4": mean([float(right > 0) for right, _ in counts]),
        "mixed_groups": mean([float(0 < right < tried) for right, tried in counts]),
        "trained": sum(0.1 <= right / tried <= 0.9 for right, tried in counts),
    }


if __name__ == "__main__":
    print(json.dumps(figures()))
