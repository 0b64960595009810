"""The README is true: its links lead somewhere, its targets exist, and its agents run as they are printed."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import agentlightning as agl
from agentlightning.plugins.manager import build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
OWN = re.sub(r"<!-- frameworks:.*?<!-- /frameworks -->", "", README, flags=re.S)
"""Without what is generated from the adapters' pages, which need their frameworks."""
BLOCKS = re.findall(r"```python\n(.*?)```", OWN, re.S)
PAGES = sorted(
    p for p in ROOT.rglob("*.md") if not {".venv", ".venvs", "dist", "runs"} & set(p.relative_to(ROOT).parts)
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        named = set(re.findall(r"make ([a-z][a-z-]+)(?=[`\s]*(?:\n|`| #|  |,|\.|\)))", page.read_text()))
        assert {
            n for n in named if f"`make {n}" in page.read_text() or f"\nmake {n}" in page.read_text()
        } <= targets


def test_commands_in_measured_tables_exist() -> None:
    shown = README + (ROOT / "docs" / "results.md").read_text()
    for script in re.findall(r"`(?:python )?((?:bench|examples)/[\w/]+\.(?:py|yaml))", shown):
        assert (ROOT / script).exists(), script


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: re.findall(r"async def (\w+)", b)[0])
async def test_the_printed_agent_runs(block: str, tmp_path: Path) -> None:
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    import agl_autogen.plugin
    import agl_local.plugin
    from calc_x.agent import MODEL_INFO
    from calc_x.calculator import calculate
    from calc_x.datasets import load
    from calc_x.grading import grade

    fitted: list[tuple[agl.Trainer, Any]] = []

    class Recording(agl.Trainer):
        def fit(self, agent: Any, train_dataset: Any, val_dataset: Any = ()) -> dict[str, Any]:
            fitted.append((self, agent))
            return {}

    lines = [
        line for line in block.splitlines() if line.strip() and not line.startswith("import agentlightning")
    ]
    assert len(lines) <= 10
    ours = {name: getattr(agl, name) for name in ("rollout", "LLM", "GRPO")}
    space = {
        "agl": SimpleNamespace(**ours, Trainer=Recording),
        "tasks": [],
        "held_out": [],
        "INFO": MODEL_INFO,
        "calculate": calculate,
        "grade": grade,
        "AssistantAgent": AssistantAgent,
        "OpenAIChatCompletionClient": OpenAIChatCompletionClient,
    }
    exec("\n".join(lines), space)
    [(made, agent)] = fitted
    trainer = agl.Trainer(
        "grpo",
        policy=ROOT / "examples" / "calc_x" / "policy",
        options={"engine": "thread", "threads": 1, "max_len": 512},
        output=tmp_path,
        adapters=made.adapters,
        trackers=[],
        plugins=build([agl_local.plugin, agl_autogen.plugin], discover=False),
    )
    async with trainer.session(agent) as context:
        evaluation = await context.evaluate(load("generated:heldout", limit=3), name="x")
    assert (
        evaluation.failed == 0 and evaluation.metrics["calls_exact"] == evaluation.metrics["calls_made"] >= 3
    )
