"""Make's targets leave tracked files as they are: results are written where ``--write`` asks for it."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECIPES = "".join(re.findall(r"^\t.*\n", (ROOT / "Makefile").read_text(), re.M))
WRITING = {"write_text", "write_bytes", "savefig", "to_csv", "dump"}
BENCHES = sorted(set(re.findall(r"bench/[\w/]+\.py", RECIPES)))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The benchmarks' folder on the path, and no trace of their modules afterwards."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    yield
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "bench")):
            del sys.modules[name]


def test_no_target_asks_for_results() -> None:
    assert len(BENCHES) >= 5
    assert "--write" not in RECIPES and "record.py" not in RECIPES


@pytest.mark.parametrize("script", BENCHES)
def test_a_benchmark_of_a_target_writes_results_only_where_it_is_asked_to(script: str) -> None:
    """Whatever writes a file below ``bench/results`` stands under ``if ….write``."""
    assert writes(ast.parse((ROOT / script).read_text())) == []


def test_a_benchmark_that_always_writes_would_be_found() -> None:
    always = "def main():\n    (RESULTS / 'x.json').write_text('')\n"
    assert writes(ast.parse(always)) == [2]
    asked = "def main():\n    if given.write:\n        (RESULTS / 'x.json').write_text('')\n"
    assert writes(ast.parse(asked)) == []
    hidden = "def main():\n    target = ROOT / 'bench' / 'results' / 'x.json'\n    target.write_text('')\n"
    assert writes(ast.parse(hidden)) == [3]


def writes(tree: ast.AST) -> list[int]:
    """The lines that write a result without being asked; of scripts that name the results' folder."""
    if "results" not in ast.unparse(tree).lower():
        return []
    found = []
    asked = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "write" in ast.unparse(node.test)
        for statement in node.body
        for child in ast.walk(statement)
    }
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in WRITING and node not in asked:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize("asked", [False, True])
def test_quickstarts_are_written_only_on_request(
    asked: bool, bench: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = imported("quickstarts.py")
    figures = {"before": 0.2, "after": 0.8, "calls": 4, "calls_exact": 4, "version": "1", "seconds": 1.0}
    figures |= {"reward_first": 0.2, "reward_last": 0.8, "steps": 1}
    monkeypatch.setattr(script, "environment", lambda name: Path(sys.executable))
    monkeypatch.setattr(script, "quickstart", lambda name, python, package: figures)
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["quickstarts.py", *["--write"][:asked]])
    assert script.main() == 0
    assert [file.name for file in tmp_path.iterdir()] == ["quickstarts.json"][:asked]


def test_some_commands_are_kept_beside_those_that_were_not_run(bench: None, tmp_path: Path) -> None:
    script = imported("trained_commands.py")
    one = {"calls": 4, "exact": 4, "ci_before": [0.1, 0.2], "ci_after": [0.3, 0.4]}
    record = tmp_path / "commands.json"
    record.write_text(json.dumps({"result": {"programs": {"openai": one, "perl": one, "gone": one}}}))
    kept = script.kept({"node": one, "perl": {**one, "exact": 3}}, record)["result"]
    assert list(kept["programs"]) == ["perl", "openai", "node"]
    assert kept["programs"]["perl"]["exact"] == 3 and kept["not_better_or_not_exact"] == ["perl"]


def test_some_programs_are_kept_beside_those_that_were_not_run(bench: None, tmp_path: Path) -> None:
    script = imported("programs/figures.py")
    one = {"requests": 3, "exact": 2, "named": 1, "refused": {"unknown-route": 1}, "why": "w", "sound": True}
    record = tmp_path / "programs.json"
    record.write_text(json.dumps({"result": {"of": {"a": one, "b": one, "gone": one}}}))
    wrong = {**one, "sound": False}
    found = {"b": {**one, "exact": 3, "refused": {}}, "wrong": wrong}
    kept = script.kept(found, record, ["b", "a", "new", "wrong"])
    assert kept["ran"] == 2 and list(kept["result"]["of"]) == ["b", "a"]
    assert kept["result"]["exact"] == 5 and kept["result"]["reasons"] == {"unknown-route": 1}
    assert "sound" not in kept["result"]["of"]["b"] and kept["result"]["not_sound"] == []


@pytest.mark.parametrize("asked", [False, True])
def test_seeds_are_written_only_on_request(
    asked: bool,
    bench: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = imported("calc_x_seeds/run.py")
    run: dict[str, Any] = {
        "reward_before": 0.3,
        "reward_after": 0.9,
        "ci_before": [0.2, 0.4],
        "ci_after": [0.8, 1],
        "run_id": "one",
    }
    kept: list[str] = []
    monkeypatch.setattr(script, "keep", lambda name, config, sets, folders: kept.extend(map(str, folders)))
    monkeypatch.setattr(script, "train", lambda seed: {**run, "seed": seed})
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", "2", *["--write"][:asked]])
    assert script.main() == 0
    assert [r["seed"] for r in json.loads(capsys.readouterr().out)["runs"]] == [2]
    assert [file.name for file in tmp_path.iterdir()] == ["calc_x_seeds.json"][:asked]
    assert kept == [str(ROOT / "runs" / "one")][:asked]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the sources are not a git work tree")
def test_what_targets_make_is_ignored() -> None:
    """The folders that targets fill are no part of the work tree."""
    made = [
        "runs/x/summary.json",
        ".venv/demo",
        ".venvs/latest/x",
        "dist/x.whl",
        ".pytest_cache/x",
        ".hypothesis/x",
    ]
    done = subprocess.run(["git", "check-ignore", *made], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == made


def imported(script: str) -> ModuleType:
    """A benchmark as a module, without running it."""
    spec = importlib.util.spec_from_file_location(f"target_{Path(script).stem}", ROOT / "bench" / script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_demo_names_the_next_command(tmp_path: Path) -> None:
    """The last line stays JSON; without a last line, as after an error, nothing is made up."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    agl = tmp_path / ".venv" / "bin" / "agl"
    agl.parent.mkdir(parents=True)
    for printed, status in (('{"reward_after": 1.0}', 0), ("", 2)):
        agl.write_text(f"#!/bin/sh\nprintf '%s' '{printed}'\nexit {status}\n")
        agl.chmod(0o755)
        made = subprocess.run(
            ["make", "-o", ".venv/demo", "demo"], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert made.returncode == status and "make demo-real" in made.stderr
        last = {"reward_after": 1.0, "next": "make demo-real"}
        assert made.stdout == (json.dumps(last) + "\n" if printed else "")
