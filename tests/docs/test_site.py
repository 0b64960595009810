"""The documentation site's reference covers the code, and the blocks of README and pages hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import reference  # noqa: E402
import snippets  # noqa: E402

PAGE = ROOT / "docs" / "page.md"


def block(language: str, text: str) -> snippets.Block:
    return snippets.Block(PAGE, 1, language, text)


@pytest.mark.plugins
def test_every_key_option_command_hook_variable_and_name_has_a_text() -> None:
    assert reference.undocumented() == []


@pytest.mark.plugins
def test_what_has_no_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "fields", lambda driver: iter([("new_option", "int", "0", "")]))
    monkeypatch.setattr(reference, "INTERNAL", reference.INTERNAL - {"AGL_WATCH"})
    found = reference.undocumented()
    assert {"option local.new_option", "option verl.new_option", "variable AGL_WATCH"} <= set(found)


@pytest.mark.plugins
def test_blocks_of_readme_and_pages_hold() -> None:
    run, checked, wrong = snippets.check()
    assert wrong == [] and checked > 50 and run


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("language", "text", "problem"),
    [
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
    check = {"sh": snippets._shell, "yaml": snippets._yaml, "python": lambda b: snippets._python(b)[0]}
    assert problem in check[language](block(language, text))


def test_every_page_stands_in_the_navigation() -> None:
    class Loader(yaml.SafeLoader): ...

    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    listed = set(places(nav)) - {"index.md", *reference.PAGES}
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")}


def places(nav: object) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [place for part in parts for place in places(part)]  # type: ignore[union-attr]
