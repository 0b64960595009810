"""The configurations describe runs that can begin."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("langgraph", reason="the agent is a LangGraph graph")
pytest.importorskip("langchain_openai")

from agentlightning.cli.options import read
from agentlightning.train.configured import configure
from router import datasets

EXAMPLE = Path(datasets.__file__).parent


@pytest.mark.parametrize(
    ("name", "show", "kinds"),
    [("cpu", "names", {"random", "same-domain", "near-name"}), ("schemas", "tables", {"near-name"})],
)
def test_a_profile(name: str, show: str, kinds: set[str], llama: Path) -> None:
    config = read(EXAMPLE / f"{name}.yaml", [])
    assert config.backend.policy == "smollm2" and config.agent.select == ["route"]
    trainer, _, train, val = configure(read(EXAMPLE / f"{name}.yaml", [f"backend.policy={llama}"]))
    assert trainer.recipe.group_size == 8 and trainer.recipe.temperature == 3.0
    assert (len(train), len(val)) == (3398, 532)
    assert {task["kind"] for task in train} == {task["kind"] for task in val} == kinds
    assert {task["show"] for task in val} == {show}
    assert not {d for task in train for d in task["databases"]} & {
        d for task in val for d in task["databases"]
    }
