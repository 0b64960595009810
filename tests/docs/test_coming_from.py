"""Our side of each program of docs/coming-from.md is run: it trains a step, and every call is exact."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from marks import sampled

import agentlightning as agl
from agentlightning.plugins.manager import build
from agentlightning.train.configured import configure
from agentlightning.train.run_file import load_config

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text()
BLOCK = re.compile(r"<!-- ours: (.+?) -->\n```(?:python|yaml)\n(.*?)```\n", re.S)
OURS = dict(BLOCK.findall(PAGE))
PROGRAMS = sorted(name for name in OURS if "," not in name)
TASKS = [{"question": f"Ann has {n} apples and buys 2 more. How many?", "answer": str(n + 2)} for n in (3, 4)]
FAST = {"threads": 1, "engine": "thread", "max_len": 160}


def exact(summary: dict[str, Any]) -> bool:
    totals = summary["totals"]
    return summary["steps"] == 1 and totals["calls"] == totals["calls_exact"] > 0 == totals["rollouts_failed"]


def test_each_of_them_has_words_and_programs() -> None:
    titles = re.findall(r"^## (.+)$", PAGE, re.M)
    assert titles == ["Agent Lightning v0.3", "Agent Lightning v1.0", "rLLM", "verifiers", "ART", "TRL"]
    assert PROGRAMS == ["ART", "TRL", "rLLM", "v0.3", "verifiers"]
    assert PAGE.count("| there | here |") == len(titles)


@pytest.mark.plugins
@pytest.mark.parametrize("name", sampled(PROGRAMS, PROGRAMS.index("v0.3")))
def test_our_side_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[dict[str, Any]] = []

    class Fast(agl.Trainer):
        """As the page has it, with a small engine in this process and the files in the test's folder."""

        def __init__(self, algorithm: Any, **fields: Any) -> None:
            super().__init__(algorithm, **fields, options=FAST, output=tmp_path, trackers=[])

        def fit(self, *args: Any, **given: Any) -> dict[str, Any]:
            done.append(super().fit(*args, **given))
            return done[-1]

    monkeypatch.setattr(agl, "Trainer", Fast)
    exec(compile(OURS[name], f"coming-from.md: {name}", "exec"), {"tasks": TASKS, "held_out": TASKS[:1]})
    (summary,) = done
    assert exact(summary)


@pytest.mark.slow
@pytest.mark.plugins
def test_our_side_of_v1_trains(tmp_path: Path) -> None:
    for name in ("agent.py", "run.yaml"):
        (tmp_path / name).write_text(
            OURS[f"v1.0, {name}"].replace("[python,", f"[{json.dumps(sys.executable)},")
        )
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    sets = {"backend.options": FAST, "training.recipe": {"group_size": 2}, "trackers": []}
    run = configure(load_config(tmp_path / "run.yaml", {**sets, "output": str(tmp_path / "runs")}))
    assert exact(run.trainer.fit(run.agent, run.train, run.val))


def test_recipe_fields_and_credit_rules_that_the_page_names_are_there() -> None:
    recipe, rules = agl.Recipe(name="x"), build(discover=False).table("agl_credit_rules")
    (given,) = re.findall(r"`recipe: \{(group_size: 8, kl.*?)\}`", PAGE)
    assert all(hasattr(recipe, name) for name in re.findall(r"(\w+): [\d.]+", given))
    assert {"broadcast", "last", "per_call", "discounted", "per_agent"} <= set(rules)
