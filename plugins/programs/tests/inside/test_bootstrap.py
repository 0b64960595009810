"""The bootstrap runs before the program and beside its ``sitecustomize``; unused, it leaves no trace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agl_programs.inside.import_hook import WATCH_VARIABLE
from agl_programs.process import BOOTSTRAP

PROBE = """
import sys
print([m for m in sys.modules if m.startswith(("agentlightning", "msgspec", "opentelemetry"))])
print(sys.path)
"""


def python(*args: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the bootstrap first on its path."""
    found = os.pathsep.join(filter(None, [str(BOOTSTRAP), path]))
    environment = {**os.environ, "PYTHONPATH": found, **variables}
    return subprocess.run(
        [sys.executable, *args], env=environment, capture_output=True, text=True, timeout=300
    )


def test_a_program_that_calls_no_model_loads_nothing() -> None:
    watched = python("-c", PROBE, **{WATCH_VARIABLE: "openai,agentlightning"})
    loaded, path = watched.stdout.splitlines()
    assert set(eval(loaded)) <= {
        "agentlightning",
        "agentlightning._lazy",
        "agentlightning._version",
        "agl_programs",
        "agl_programs.inside",
        "agl_programs.inside.import_hook",
        "agl_programs.inside.watch",
    }
    without = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=300)
    assert path == without.stdout.splitlines()[1]
    assert watched.stderr == ""


def test_outside_of_a_run_it_does_nothing() -> None:
    assert python("-c", PROBE).stdout.splitlines()[0] == "[]"


def test_the_users_own_sitecustomize_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = __file__")
    result = python("-c", "import sitecustomize; print(mine, sitecustomize.__file__)", path=str(tmp_path))
    assert result.stdout.split() == [str(tmp_path / "sitecustomize.py")] * 2


def test_an_error_in_the_users_sitecustomize_is_printed_as_usual(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('of the user')")
    result = python("-c", "print('goes on')", path=str(tmp_path))
    assert result.stdout == "goes on\n" and "of the user" in result.stderr


@pytest.mark.parametrize("flags", [("-I",), ("-S",), ("-E",)])
def test_flags_that_skip_sitecustomize(flags: tuple[str, ...]) -> None:
    assert python(*flags, "-c", "print('runs')", **{WATCH_VARIABLE: "openai"}).stdout == "runs\n"


def test_missing_settings_do_not_stop_the_program() -> None:
    result = python(
        "-c",
        "import agentlightning; agentlightning.Span; print('runs')",
        **{WATCH_VARIABLE: "agentlightning"},
    )
    assert result.stdout == "runs\n" and "capture could not begin (KeyError" in result.stderr


def test_an_unreachable_agl_run_does_not_stop_the_program() -> None:
    from agl_programs.inside.settings import ChildSettings

    settings = ChildSettings(
        rollout_id="ro",
        attempt_id="at",
        key="agl-k",
        gateway="http://127.0.0.1:9/v1",
        store="http://127.0.0.1:9",
    )
    code = "import agentlightning as agl; agl.emit_reward(1.0); print('runs')"
    result = python("-c", code, **settings.variables(["agentlightning"]))
    assert result.stdout == "runs\n", result.stderr
    assert result.stderr.count("agl run cannot be reached") == 1


def test_a_package_of_ours_that_this_interpreter_cannot_read_does_not_stop_it(tmp_path: Path) -> None:
    package = tmp_path / "agl_programs"
    package.mkdir()
    (package / "__init__.py").write_text("a syntax of tomorrow")
    (tmp_path / "sitecustomize.py").write_text("print('the user\\'s')")
    result = python("-c", "print('runs')", path=str(tmp_path), **{WATCH_VARIABLE: "openai"})
    assert result.stdout == "the user's\nruns\n" and result.stderr.count("\n") == 1
    assert "capture could not begin (SyntaxError" in result.stderr
