"""A server of the Tinker API in this process, over a tiny policy; what needs the client runs in the
environment ``tinker`` (``make test-tinker``).
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDED = ("agl_tinker", "agl_local")
collect_ignore_glob = [] if all(map(find_spec, NEEDED)) else ["test_*.py"]

if not collect_ignore_glob:
    from plugins.local.tests.driver_fixtures import saved_policy
    from plugins.tinker.tests.running import Running

    @pytest.fixture(scope="session")
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """A policy of 259 tokens, which is called ``tiny`` on the server."""
        return saved_policy(tmp_path_factory.mktemp("policy") / "tiny")

    @pytest.fixture
    def served(folder: Path, tmp_path: Path) -> Iterator[Running]:
        with Running(folder, tmp_path / "state") as running:
            yield running

    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        """The client asks for its settings over a connection that it never closes."""
        for item in items:
            if item.path.parent == Path(__file__).parent:
                item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))

    @pytest.fixture(autouse=True)
    def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """What the client wants of its surroundings; what it leaves is collected here."""
        monkeypatch.setenv("TINKER_API_KEY", "tml-test")
        monkeypatch.setenv("TINKER_TELEMETRY", "0")
        yield
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
