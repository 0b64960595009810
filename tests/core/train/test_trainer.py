"""What the trainer is given: read as a person means it, or refused by name before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import agentlightning as agl
from agentlightning.algorithms.context import Context
from agentlightning.plugins.manager import PluginError, build
from agentlightning.types import UsageError


def trainer(folder: Path, algorithm: Any = "grpo", **options: Any) -> agl.Trainer:
    plugins = build([], discover=False)
    return agl.Trainer(algorithm, output=folder, plugins=plugins, **{"trackers": [], **options})


def solve(task: Any) -> float:
    return 1.0


def test_a_single_name_may_be_given_bare(tmp_path: Path) -> None:
    made = trainer(tmp_path, adapters="langgraph", trackers="files")
    assert made.config.agent.adapters == ["langgraph"] and made.config.trackers == ["files"]
    with pytest.raises(PluginError, match=r"the adapter 'langgraph' is not installed.*adapters/langgraph"):
        trainer(tmp_path, agl.Baseline(), adapters="langgraph").fit(solve, [1])


@pytest.mark.parametrize("algorithm", [None, 7, object(), ["grpo"]])
def test_what_is_no_algorithm_is_refused(algorithm: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"algorithm=.* is no algorithm: give a recipe"):
        trainer(tmp_path / "runs", algorithm).fit(solve, [1])
    assert not (tmp_path / "runs").exists()


def test_a_function_is_of_the_plugin_that_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no algorithm: .*a function: it comes with agl-v03"):
        trainer(tmp_path / "runs", lambda store: None).fit(solve, [1])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("tasks.jsonl", "there is no file tasks.jsonl"),
        ({"train": [1], "test": [2]}, r"a dict with the splits train, test: .*data\['train'\]"),
        (7, "an int: give a list of tasks"),
    ],
)
def test_datasets_are_read_or_refused_before_anything_starts(data: Any, said: str, tmp_path: Path) -> None:
    for name, given in {"training tasks": (data, [1]), "held-out tasks": ([1], data)}.items():
        with pytest.raises(UsageError, match=f"{name}: .*{said}"):
            trainer(tmp_path / "runs", agl.Baseline()).fit(solve, *given)
    assert not (tmp_path / "runs").exists()


def test_the_algorithm_gets_the_tasks_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "tasks.csv").write_text("q,a\n1 + 1,2\n")

    class Look:
        needs_policy = False

        async def run(self, context: Context) -> dict[str, Any]:
            return {"train": context.train, "val": context.val}

    found = trainer(tmp_path / "runs", Look).fit(solve, tmp_path / "tasks.csv", (n for n in range(3)))
    assert found["train"] == [{"q": "1 + 1", "a": "2"}] and found["val"] == [0, 1, 2]
