"""The README is true: its links lead somewhere, its targets exist, and its agents run as they are printed."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import agentlightning as agl
from agentlightning.plugins.manager import build

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)
PAGES = sorted(
    p for p in ROOT.rglob("*.md") if not {".venv", ".venvs", "dist", "runs"} & set(p.relative_to(ROOT).parts)
)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


FENCED = re.compile(r"^ *```.*?^ *```", re.S | re.M)


def anchor(heading: str) -> str:
    """The anchor of a heading, as the site makes it."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


@cache
def anchors(page: Path) -> set[str]:
    return {anchor(one) for one in re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.M)}


def test_a_link_into_a_page_leads_to_a_heading() -> None:
    wrong = []
    for page in PAGES:
        for target, name in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", FENCED.sub("", page.read_text())):
            there = (page.parent / target).resolve() if target else page
            if "://" not in target and there.suffix == ".md" and name not in anchors(there):
                wrong.append(f"{page.relative_to(ROOT)}: {target}#{name}")
    assert wrong == []


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for page in PAGES:
        named = set(re.findall(r"make ([a-z][a-z-]+)(?=[`\s]*(?:\n|`| #|  |,|\.|\)))", page.read_text()))
        assert {
            n for n in named if f"`make {n}" in page.read_text() or f"\nmake {n}" in page.read_text()
        } <= targets


def test_commands_in_measured_tables_exist() -> None:
    shown = README + (ROOT / "docs" / "contributing" / "results.md").read_text()
    for script in re.findall(r"`(?:python )?((?:bench|examples)/[\w/]+\.(?:py|yaml))", shown):
        assert (ROOT / script).exists(), script


async def test_the_printed_agent_runs(tmp_path: Path) -> None:
    """The program as it is printed, evaluated instead of trained; `make readme` trains it, from nothing."""
    pytest.importorskip(
        "langchain_openai", reason="langchain is not in this environment; make readme runs it"
    )
    import agl_langchain.plugin
    import agl_local.plugin

    (block,) = BLOCKS
    lines = [
        line for line in block.splitlines() if line.strip() and not line.startswith("import agentlightning")
    ]
    assert len(lines) <= 10 and len(re.findall(r"^(?:from|import) ", block, re.M)) == 4
    fitted: list[tuple[agl.Trainer, Any, Any]] = []
    plugins = build([agl_local.plugin, agl_langchain.plugin], discover=False)

    class Recording(agl.Trainer):
        def __init__(self, **fields: Any) -> None:
            fast = {"engine": "thread", "threads": 1, "max_len": 512}
            super().__init__(**fields, options=fast, output=tmp_path, trackers=[], plugins=plugins)

        def fit(self, agent: Any, train_dataset: Any = None, val_dataset: Any = None) -> dict[str, Any]:
            fitted.append((self, agent, val_dataset))
            return {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agl, "Trainer", Recording)
        exec(block, {})
    [(trainer, agent, held_out)] = fitted
    async with trainer.session(agent) as context:
        evaluation = await context.evaluate(held_out[:3], name="x")
    assert (
        evaluation.failed == 0 and evaluation.metrics["calls_exact"] == evaluation.metrics["calls_made"] >= 3
    )


def test_a_reader_decides_in_a_minute() -> None:
    """A sentence, one large result that stands still, commands, one block of a framework: before all else."""
    assert len(README.splitlines()) < 110 and len(README.split()) < 1200
    assert README.index("learned.svg") < README.index("demo-real.svg") < README.index("```sh")
    assert README.index("```sh") < README.index("```python") < README.index("| hardware |")
    assert "We have not run anything on a GPU yet" in README
    table = next(part for part in README.split("\n\n") if part.startswith("| what learns"))
    assert "pretrained" in table.splitlines()[2]


@pytest.mark.parametrize("name", ["demo", "demo-real"])
def test_a_moving_picture_has_no_script_and_stands_still_on_request(name: str) -> None:
    picture = (ROOT / "docs" / "images" / f"{name}.svg").read_text()
    assert "prefers-reduced-motion" in picture and "<script" not in picture and "<title" in picture
    assert not re.search(r"""(?:href|src)=["'](?!#)|url\(|@import""", picture), "it loads something"
    assert str(ROOT) not in picture and "~/agent-lightning/runs" in picture
