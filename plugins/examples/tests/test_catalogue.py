"""The catalogue of examples: whole, true to the folder, and copied without loss."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from agentlightning.types import UsageError
from agl_examples import catalogue as module
from agl_examples.catalogue import Example, catalogue, copy_example, files_folder, find_example

EXAMPLES = Path(__file__).parents[3] / "examples"
NOT_EXAMPLES = {"small_policy", "quickstart", "demo_commands.py", "examples.toml", "__pycache__"}
"""What is there for other examples."""


def parts() -> set[str]:
    """The names that an import or a path of an example may begin with."""
    return {path.stem for path in EXAMPLES.iterdir() if path.is_dir() or path.suffix == ".py"}


def used(path: Path) -> Iterator[str]:
    """Yield the examples that a file imports, or names as a target, a policy or data."""
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.split(".")[0]
            elif isinstance(node, ast.Import):
                yield from (name.name.split(".")[0] for name in node.names)
    if path.suffix == ".yaml":
        text = path.read_text(encoding="utf-8")
        yield from re.findall(r"target: \"?(\w+)\.", text)
        yield from re.findall(r"\.\./(\w+)/", text)


@pytest.mark.parametrize("name", catalogue())
def test_an_entry_is_whole(name: str) -> None:
    example = find_example(name)
    assert all((EXAMPLES / one).exists() for one in example.files)
    files = [
        path
        for one in example.files
        for path in [EXAMPLES / one, *(EXAMPLES / one).rglob("*")]
        if path.is_file()
    ]
    wanted = {one for path in files for one in used(path)} & parts()
    assert wanted <= {one.removesuffix(".py") for one in example.files}, "imported, and not copied"
    assert all(Requirement(one) for one in example.requires)
    for word in example.run:
        if word.startswith("examples/"):
            assert word.removeprefix("examples/").split("/")[0] in example.files


def test_no_example_is_left_out() -> None:
    named = {one for example in catalogue().values() for one in example.files}
    assert {path.name for path in EXAMPLES.iterdir()} - NOT_EXAMPLES - named == set()


def test_a_copy_has_every_file_once_and_may_be_made_again(tmp_path: Path) -> None:
    copied = copy_example("callbacks", tmp_path)
    assert sorted(path.name for path in copied) == ["README.md", "callbacks.py"]
    for path in copied:
        assert path.read_bytes() == (EXAMPLES / path.relative_to(tmp_path / "examples")).read_bytes()
    assert copy_example("callbacks", tmp_path) == copied


def test_a_changed_file_is_kept_and_nothing_is_written(tmp_path: Path) -> None:
    copied = copy_example("callbacks", tmp_path)
    copied[0].write_text("mine")
    copied[1].unlink()
    with pytest.raises(UsageError, match=re.escape(str(copied[0])) + " is there and differs"):
        copy_example("callbacks", tmp_path)
    assert copied[0].read_text() == "mine" and not copied[1].exists()


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(UsageError, match="there is no example 'calcx'; there are calc_x, "):
        find_example("calcx")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_NOT_SET", raising=False)
    example = Example(
        about="",
        files=(),
        requires=("agl-core", "agl-core>=99", "no-such-distribution", "agl-core[no-such-extra]"),
        environment=("AGL_NOT_SET",),
        program="no-such-program",
    )
    assert example.missing() == ["agl-core>=99", "no-such-distribution", "$AGL_NOT_SET", "no-such-program"]


def test_an_extra_counts_as_missing_until_what_it_brings_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        version = "1"
        requires = ['no-such-framework>=1; extra == "instruments"', "also-none; python_version < '3'"]

    real = module.metadata.distribution
    monkeypatch.setattr(
        module.metadata, "distribution", lambda name: Distribution() if name == "agl-made-up" else real(name)
    )
    needs = Example(about="", files=(), requires=("agl-made-up", "agl-made-up[instruments]"))
    assert needs.missing() == ["agl-made-up[instruments]"]


def test_a_package_without_files_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "_PACKAGE", tmp_path)
    monkeypatch.setattr(module, "_CHECKOUT", tmp_path / "none")
    with pytest.raises(UsageError, match="has no files"):
        files_folder()


@pytest.mark.slow
def test_the_wheel_has_the_files_of_the_checkout(tmp_path: Path) -> None:
    folder = EXAMPLES.parent / "plugins" / "examples"
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(folder)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    wanted = {
        path.relative_to(EXAMPLES).as_posix()
        for example in catalogue().values()
        for one in example.files
        for path in [EXAMPLES / one, *(EXAMPLES / one).rglob("*")]
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted | {"examples.toml"} <= {name.removeprefix("agl_examples/files/") for name in names}
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    program = "from agl_examples.catalogue import files_folder; print(files_folder())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path / "site", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path / "site" / "agl_examples" / "files")
