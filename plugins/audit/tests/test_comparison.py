"""Two runs side by side: pairs of tasks, intervals, settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from contract.runs import add_evaluation, add_rollout, make_run, plugins

from agentlightning.store import SQLiteStore
from agl_audit.comparison import compare, differences
from agl_audit.run import open_run


def test_settings_differ_by_their_dotted_keys() -> None:
    first = {"run_id": "a", "recipe": {"kl": 0.0, "name": "grpo"}, "seed": 1, "summary": {"x": 1}}
    second = {"run_id": "b", "recipe": {"kl": 0.1, "name": "grpo"}, "options": {"lr": 1e-4}}
    assert differences(first, second) == {
        "recipe.kl": (0.0, 0.1),
        "seed": (1, None),
        "options.lr": (None, 1e-4),
    }


async def evaluated(root: Path, name: str, rewards: dict[str, float | None], **info: object) -> Path:
    """A run with an evaluation ``after`` of the named tasks."""
    folder = await make_run(root, name=name, info=info)
    store = SQLiteStore(folder / "store.sqlite")
    ids = []
    for number, (task, reward) in enumerate(rewards.items()):
        group = f"{name}/eval/after/2/{number}"
        ids.append(
            await add_rollout(
                store, name, f"ro-{name}-{task}", reward, version=2, mode="val", group=group, task_id=task
            )
        )
    await add_evaluation(store, name, "eval/after/2", ids, None)
    await store.close()
    return folder


async def test_tasks_are_paired_by_their_id(tmp_path: Path) -> None:
    one = await evaluated(tmp_path, "one", {"a": 0.0, "b": 0.0, "c": 1.0, "d": 1.0}, seed=1)
    other = await evaluated(tmp_path, "other", {"b": 1.0, "c": 1.0, "d": None, "e": 1.0}, seed=2)
    async with (
        open_run(str(one), plugins=plugins()) as first,
        open_run(str(other), plugins=plugins()) as second,
    ):
        found = await compare(first, second)
    after = next(pair for pair in found.evaluations if pair.name == "after")
    assert (after.tasks, after.unpaired, after.better, after.worse) == (2, 3, 1, 0)  # d has no reward in one
    assert after.difference == 0.5 and after.ci is not None and after.ci[0] < 0.5 < after.ci[1]
    assert after.interval == "Student's t"
    assert after.second is not None and (after.second.failed, after.second.left_out) == (1, 1)
    assert found.settings == {"seed": (1, 2)}
    assert found.curves["first"] == [pytest.approx(0.5), pytest.approx(1 / 3)]
    assert json.loads(found.model_dump_json())["first"] == "one"
