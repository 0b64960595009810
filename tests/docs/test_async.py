"""docs/async.md: its examples are taken, and its metrics are those that steps have."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from agentlightning.algorithms.recipe_checks import check_schedule
from agentlightning.recipes import get
from agentlightning.types.sections import TrainingSection

PAGE = (Path(__file__).parents[2] / "docs" / "async.md").read_text()
SOURCE = Path(__file__).parents[2]


def test_the_examples_are_taken() -> None:
    blocks = [yaml.safe_load(block)["training"] for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]
    sections = [TrainingSection.model_validate(block) for block in blocks]
    assert [(s.async_steps, s.order, s.dynamic_sampling) for s in sections] == [
        (1, "dataset", 0),
        (2, "finished", 0),
        (0, "dataset", 3),
    ]
    for section in sections:
        check_schedule(get("grpo", **section.recipe), section)


def test_the_metrics_are_those_of_the_code() -> None:
    places = (
        "algorithms/rollouts/dynamic_sampling.py",
        "algorithms/rollouts/prefetch.py",
        "algorithms/rollouts/finished_first.py",
        "credit/accounts.py",
    )
    code = "".join((SOURCE / "core" / "src" / "agentlightning" / place).read_text() for place in places)
    code += (SOURCE / "plugins" / "local" / "src" / "agl_local" / "training" / "update.py").read_text()
    own = set(re.findall(r'"((?:async|dynamic_sampling)/\w+)"', code))
    told = set(re.findall(r"`((?:async|dynamic_sampling)/\w+)`", PAGE))
    assert own == told and len(own) == 11
    assert all(f'"{name}"' in code for name in ("staleness_mean", "staleness_max", "tokens_stale"))
