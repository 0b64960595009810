"""docs/async.md: its examples are taken, and its metrics are those that steps have."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from agentlightning.recipes import get
from agl_schedules.settings import ScheduledTraining, check_schedule

PAGE = (Path(__file__).parents[2] / "docs" / "async.md").read_text()
SOURCE = Path(__file__).parents[2]


def test_the_examples_are_taken() -> None:
    blocks = [yaml.safe_load(block)["training"] for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]
    sections = [ScheduledTraining.model_validate(block) for block in blocks]
    assert [(s.async_steps, s.order, s.dynamic_sampling) for s in sections] == [
        (1, "dataset", 0),
        (2, "finished", 0),
        (0, "dataset", 3),
    ]
    for section in sections:
        check_schedule(get("grpo", **section.recipe), section)


def test_the_metrics_are_those_of_the_code() -> None:
    places = (
        "plugins/schedules/src/agl_schedules/dynamic_sampling.py",
        "core/src/agentlightning/algorithms/queue.py",
        "plugins/schedules/src/agl_schedules/finished_first.py",
        "core/src/agentlightning/credit/accounts.py",
    )
    code = "".join((SOURCE / place).read_text() for place in places)
    code += (SOURCE / "plugins" / "local" / "src" / "agl_local" / "training" / "rules.py").read_text()
    own = set(re.findall(r'"((?:async|dynamic_sampling)/\w+)"', code))
    told = set(re.findall(r"`((?:async|dynamic_sampling)/\w+)`", PAGE))
    assert own == told and len(own) == 11
    assert all(f'"{name}"' in code for name in ("staleness_mean", "staleness_max", "tokens_stale"))
