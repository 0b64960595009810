"""Shell blocks of pages are run line by line; what fails, hangs or serves is told apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "site"))
import shells  # noqa: E402


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "config.yaml").write_text("a: 1\n")
    monkeypatch.setattr(shells, "project", lambda: folder)
    yield folder


def test_comments_are_not_typed_and_long_lines_are_joined() -> None:
    text = "# a comment\nagl train   # and wait\necho 'a # b' \\\n  x#y\n\ncurl http://a/#b\n"
    assert list(shells.commands(text)) == ["agl train", "echo 'a # b'    x#y", "curl http://a/#b"]


def test_lines_run_in_their_order_in_a_copy_of_the_project(project: Path) -> None:
    assert shells.run(["cat config.yaml made", "rm config.yaml"], setup=["echo b > made"]) == ""
    assert [path.name for path in project.iterdir()] == ["config.yaml"]


def test_the_first_line_that_fails_is_named_with_its_words() -> None:
    said = shells.run(["true", "echo so; echo bad >&2; exit 3", "touch /never"])
    assert said == "echo so; echo bad >&2; exit 3: status 3: so | bad"


def test_a_line_that_goes_on_beside_ends_with_the_block() -> None:
    wait = "until test -e there; do sleep 0.05; done"
    assert shells.run(["touch there; sleep 600 &", wait, "rm there"]) == ""


def test_a_server_is_ended_once_it_says_that_it_serves() -> None:
    server = "echo starting; echo serving at 1; sleep 600; exit 1"
    assert shells.run(["echo first", server], until="serving") == ""
    assert "status 2" in shells.run(["echo starting; exit 2"], until="serving")


def test_a_line_that_never_ends_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shells, "SECONDS", 0.2)
    assert "status -15" in shells.run(["sleep 600"])


def test_a_readers_shell_has_nothing_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGL_TOKEN", "secret")
    found = shells.environment(tmp_path)
    assert "AGL_TOKEN" not in found and found["HOME"] == str(tmp_path)
    assert found["PATH"].startswith(str(Path(sys.executable).parent))


def test_the_project_has_the_configuration_that_is_made_shorter() -> None:
    assert (
        shells.WHOLE in (ROOT / "plugins/examples/src/agl_examples/templates/project/config.yaml").read_text()
    )
