"""Fixtures of the engine's tests: see ``engine_fixtures`` for what they build."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from agl_local.generation.engine import Engine
from agl_local.http.process import EngineProcess
from agl_local.policy.folder import Policy, save_policy
from plugins.local.tests.engine_fixtures import small_policy


@pytest.fixture(scope="session")
def policy() -> Policy:
    return small_policy()


@pytest.fixture(scope="session")
def policy_dir(tmp_path_factory: pytest.TempPathFactory, policy: Policy) -> Path:
    return save_policy(policy, tmp_path_factory.mktemp("policy"))


@pytest.fixture
def engine(policy: Policy) -> Iterator[Engine]:
    with Engine(policy, slots=8, max_len=128) as running:
        yield running


@pytest.fixture
def greeted(monkeypatch: pytest.MonkeyPatch) -> Queue[Any]:
    """The processes of engines, each from when its greeting is awaited."""
    processes: Queue[Any] = Queue()
    real = EngineProcess._greet

    def greet(self: EngineProcess, deadline: float) -> None:
        processes.put(self._process)
        real(self, deadline)

    monkeypatch.setattr(EngineProcess, "_greet", greet)
    return processes
