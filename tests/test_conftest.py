"""The guards every other test relies on."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from marks import BATTERIES, CORE, loaded_plugins


def test_each_test_is_in_one_part(pytestconfig: pytest.Config) -> None:
    plugin = pytestconfig.pluginmanager.get_plugin(str(Path(__file__).parents[1] / "conftest.py"))
    found: list[str] = []
    for part in ("1/3", "2/3", "3/3"):
        items: list[Any] = [SimpleNamespace(nodeid=f"test_{number}") for number in range(300)]
        hook = SimpleNamespace(pytest_deselected=lambda items: None)
        plugin.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _, p=part: p, hook=hook), items)
        assert 50 < len(items) < 150
        found += [item.nodeid for item in items]
    assert sorted(found) == sorted(f"test_{number}" for number in range(300))


@pytest.mark.parametrize("method", ["connect", "connect_ex"])
def test_a_connection_beyond_loopback_is_refused(method: str) -> None:
    with socket.socket() as outside, pytest.raises(RuntimeError, match=r"may not connect to 192\.0\.2\.1:80"):
        getattr(outside, method)(("192.0.2.1", 80))


def test_a_name_look_up_is_refused() -> None:
    with pytest.raises(RuntimeError, match="may not look up"):
        socket.create_connection(("example.invalid", 80))


def test_loopback_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("localhost", port)) as client:
            assert client.getpeername() == ("127.0.0.1", port)


async def test_asyncio_is_guarded_too() -> None:
    import asyncio

    with pytest.raises(RuntimeError, match="may not connect"):
        await asyncio.open_connection("192.0.2.1", 80)


def test_the_shells_settings_are_gone() -> None:
    assert [n for n in os.environ if n.startswith(("AGL_", "OPENAI_", "OTEL_"))] == ["AGL_PLUGINS"]
    assert os.environ["AGL_PLUGINS"] == loaded_plugins(Path(__file__))


def test_cores_tests_import_no_plugin() -> None:
    """With the modules of ``contract`` that they use, and those that these use."""
    found: set[Path] = set()
    ahead = [*CORE.rglob("*.py")]
    while ahead:
        found.add(path := ahead.pop())
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        names += [one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names]
        others = [name for name in names if name.startswith(("agl_", "e2e", "plugins"))]
        assert not others, f"{path.relative_to(CORE)} imports {', '.join(others)}"
        shared = {CORE.parent / f"{name.replace('.', '/')}.py" for name in names}
        ahead += [one for one in shared - found if one.exists()]
    assert CORE.parent / "contract" / "model_server.py" in found


def test_core_is_tested_without_plugins_and_the_rest_with_those_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert loaded_plugins(CORE / "store" / "test_x.py") == ""
    assert set(loaded_plugins(CORE.parent / "e2e" / "test_x.py").split(",")) <= set(BATTERIES)
    monkeypatch.setattr("marks.find_spec", lambda name: name == "agl_audit")
    assert loaded_plugins(CORE.parents[1] / "plugins" / "audit" / "tests" / "test_x.py") == "audit"


@pytest.mark.plugins
def test_a_marked_test_sees_installed_plugins() -> None:
    assert "AGL_PLUGINS" not in os.environ


@pytest.mark.slow
def test_a_session_left_open_fails_its_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((Path(__file__).parents[1] / "conftest.py").read_text())
    (tmp_path / "test_sessions.py").write_text(
        """
import aiohttp
kept = []

async def test_left():
    kept.append(aiohttp.ClientSession())

async def test_closed():
    async with aiohttp.ClientSession() as session:
        kept.append(session)
"""
    )
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(root / "pyproject.toml"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(root / "tests")}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider"], env=environment, capture_output=True, text=True
    )
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "1 client sessions were left open" in done.stdout
