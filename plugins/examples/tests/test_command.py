"""``agl example`` lists, copies and runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentlightning import cli
from agl_examples import catalogue as module

CATALOGUE = """
[hello]
about = "says where it is"
files = ["hello"]
run = ["python", "examples/hello/say.py"]

[page]
about = "a page"
files = ["hello"]

[far]
about = "needs what is not here"
files = ["hello"]
requires = ["agl-made-up[instruments]"]
environment = ["AGL_NOT_SET"]
run = ["python", "examples/hello/say.py"]
"""
SAY = """
import os, pathlib, sys
import hello
pathlib.Path("said").write_text(" ".join(sys.argv[1:]))
sys.exit(int(sys.argv[-1]))
"""


@pytest.fixture
def agl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CliRunner]:
    """The command over a catalogue of three, in an empty folder."""
    files = tmp_path / "package" / "files"
    (files / "hello").mkdir(parents=True)
    (files / "examples.toml").write_text(CATALOGUE)
    (files / "hello" / "__init__.py").touch()
    (files / "hello" / "say.py").write_text(SAY)
    monkeypatch.setattr(module, "_PACKAGE", tmp_path / "package")
    module.catalogue.cache_clear()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield CliRunner()
    module.catalogue.cache_clear()


@pytest.mark.plugins
def test_the_list_says_what_runs_here(agl: CliRunner) -> None:
    result = agl.invoke(cli.app(), ["example", "list"])
    assert result.exit_code == 0 and "says where it is" in result.output and "agl-made-up" in result.output
    lines = [
        json.loads(line) for line in agl.invoke(cli.app(), ["example", "list", "--json"]).output.splitlines()
    ]
    assert [line["name"] for line in lines] == ["hello", "page", "far"]
    assert lines[2]["missing"] == ["agl-made-up[instruments]", "$AGL_NOT_SET"]


@pytest.mark.plugins
def test_a_copy_says_how_to_run_it(agl: CliRunner) -> None:
    result = agl.invoke(cli.app(), ["example", "copy", "hello", "mine"])
    assert result.exit_code == 0
    assert "run it: cd mine && PYTHONPATH=examples python examples/hello/say.py" in result.output
    assert Path("mine/examples/hello/say.py").read_text() == SAY
    machine = json.loads(agl.invoke(cli.app(), ["example", "copy", "far", "far", "--json"]).output)
    assert machine["files"] == ["far/examples/hello/__init__.py", "far/examples/hello/say.py"]


@pytest.mark.plugins
def test_a_run_gives_its_words_to_the_program_and_returns_its_status(agl: CliRunner) -> None:
    result = agl.invoke(cli.app(), ["example", "run", "hello", "--dir", "mine", "--set", "a=1", "3"])
    assert result.exit_code == 3
    assert Path("mine/said").read_text() == "--set a=1 3"
    assert (
        agl.invoke(cli.app(), ["example", "run", "hello", "0"]).exit_code == 0 and Path("hello/said").exists()
    )


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("page", "agl example copy page"),
        ("far", "pip install --find-links WHEELS 'agl-made-up[instruments]'"),
        ("far", "the environment variable AGL_NOT_SET"),
        ("none", "there is no example 'none'; there are hello, page, far"),
    ],
)
def test_what_cannot_run_is_an_error_that_says_what_to_do(agl: CliRunner, name: str, message: str) -> None:
    result = agl.invoke(cli.app(), ["example", "run", name])
    assert result.exit_code != 0
    said = result.output + str(result.exception)
    assert message in " ".join(said.split())
    assert not Path(name).exists()


@pytest.mark.slow
@pytest.mark.plugins
def test_a_real_example_trains_from_a_copy(tmp_path: Path) -> None:
    settings = ["training.steps=1", "training.batch_size=1", "environment.val.args.limit=8"]
    options = [word for one in settings for word in ("--set", one)]
    result = CliRunner().invoke(cli.app(), ["example", "run", "calc_x", "--dir", str(tmp_path), *options])
    assert result.exit_code == 0
    assert len(list((tmp_path / "runs").glob("*/summary.json"))) == 1
