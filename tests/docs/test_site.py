"""The documentation site's reference covers the code, and the blocks of README and pages hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from agentlightning.types import UsageError

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import catalogues  # noqa: E402
import reference  # noqa: E402
import snippets  # noqa: E402

FIRST = {"index.md", "index.zh.md", "security.md"}
"""Pages that are files of the repository's root."""
PAGE = ROOT / "docs" / "page.md"


def block(language: str, text: str) -> snippets.Block:
    return snippets.Block(PAGE, 1, language, text)


@pytest.mark.plugins
def test_every_key_option_command_hook_variable_and_name_has_a_text() -> None:
    assert reference.undocumented() == []


def test_recipes_and_errors_have_pages() -> None:
    recipes, errors = catalogues.recipes(), catalogues.errors()
    assert "| `group_size` | `int` | `8` | Rollouts per task. |" in recipes
    assert "| `grpo` |" in recipes and "| `ppo` |" in recipes and "scale: std" in recipes
    assert "| `RunError` | `agentlightning.train.run_folder` | 2 |" in errors and "| 3 |" in errors


@pytest.mark.slow
@pytest.mark.plugins
def test_what_has_no_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "fields", lambda driver: iter([("new_option", "int", "0", "")]))
    monkeypatch.setattr(reference, "INTERNAL", reference.INTERNAL - {"AGL_WATCH"})
    monkeypatch.setattr(catalogues, "fields", lambda: iter([("colour", "str", "''", "")]))
    nameless = type("Nameless", (UsageError,), {"__doc__": None})
    monkeypatch.setattr(catalogues, "usage_errors", lambda: [nameless])
    found = reference.undocumented()
    assert {"recipe field colour", "error Nameless"} <= set(found)
    assert {"option local.new_option", "option verl.new_option", "variable AGL_WATCH"} <= set(found)


@pytest.mark.slow
@pytest.mark.plugins
def test_blocks_of_readme_and_pages_hold() -> None:
    found = snippets.check()
    assert found.wrong == [] and found.checked > 50 and found.run > 30


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("language", "text", "problem"),
    [
        ("python", "import numpy_that_nobody_has", "No module named"),
        ("yaml", "training: {steps: many}", "steps"),
        ("sh", "agl trian --config c.yaml", "there is no command trian"),
        ("sh", "A=1 agl train --confg c.yaml", "agl train has no option --confg"),
        ("sh", "cd x; agl policy fetchh smollm2 --force", "agl policy"),
        ("yaml", "training: {stepz: 3}", "no key 'stepz'"),
        ("yaml", "agent: [", "no YAML"),
        ("python", "import agentlightning as agl\nagl.nothing()", "there is no agl.nothing"),
        ("python", "from agentlightning.types import Nothing", "has no Nothing"),
        ("python", "import json\nraise ValueError('no')", "ValueError: no"),
        ("python", "def f(:", "invalid syntax"),
    ],
)
def test_a_block_that_does_not_hold_is_named(language: str, text: str, problem: str) -> None:
    said, ran = snippets._look(block(language, text))
    assert problem in said and not ran


@pytest.mark.plugins
def test_notes_prepare_a_block_and_say_what_it_needs() -> None:
    found = block("python", "print(answer)")
    assert snippets._look(found) == ("NameError: name 'answer' is not defined", False)
    assert snippets._look(found._replace(notes=("setup: answer = 42",))) == ("", True)
    assert snippets._look(found._replace(notes=("needs: an answer",))) == ("", False)
    cell = block("python", "import asyncio\nawait asyncio.sleep(0)")
    assert "await" in snippets._look(cell)[0] and snippets._look(cell._replace(notes=("cell",))) == ("", True)


def test_comments_above_a_block_are_its_notes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    text = "<!-- far -->\n\n<!-- setup: a = 1 -->\n<!-- cell -->\n```python\na\n```\n"
    (tmp_path / "docs" / "page.md").write_text(text)
    monkeypatch.setattr(snippets, "ROOT", tmp_path)
    (found,) = snippets.blocks()
    assert found.notes == ("setup: a = 1", "cell") and found.line == 5


@pytest.mark.plugins
def test_a_block_that_nobody_runs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [block("ruby", "puts 1"), block("", "?"), block("text", "an answer"), block("json", "{}")]
    monkeypatch.setattr(snippets, "blocks", lambda: iter(blocks))
    found = snippets.check()
    assert found.wrong == ["docs/page.md:1: it is neither run nor marked <!-- needs: … -->"] * 2
    assert (found.run, found.outputs, found.needs) == (0, 1, {"data": 1})


def test_the_lines_of_a_shell_block_are_run_by_make_docs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.setattr(snippets.shells, "project", lambda: tmp_path / "project")
    monkeypatch.setattr(snippets.shells, "forget", lambda: None)
    ready = block("sh", "cat there\n")._replace(notes=("setup: touch there",))
    blocks = [ready, block("sh", "cat there\n"), ready._replace(notes=("needs: a disk",))]
    monkeypatch.setattr(snippets, "blocks", lambda: iter(blocks))
    assert snippets.check().needs == {"make docs": 2, "a disk": 1}
    found = snippets.check(train=True)
    assert (found.run, found.needs) == (1, {"a disk": 1})
    assert len(found.wrong) == 1 and "cat there: status 1" in found.wrong[0]


def test_every_page_stands_in_the_navigation() -> None:
    class Loader(yaml.SafeLoader): ...

    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    listed = set(places(nav)) - {*FIRST, *reference.PAGES}
    pages = (page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md"))
    assert listed == {page.as_posix() for page in pages}


def places(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [place for part in parts for place in places(part)]  # type: ignore[union-attr]
