"""Policies of 259 tokens: the one that is taught, and its teacher."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.local.tests.driver_fixtures import saved_policy


@pytest.fixture(scope="session")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_policy(tmp_path_factory.mktemp("student") / "policy", seed=0)


@pytest.fixture(scope="session")
def master(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy with another opinion of every token."""
    return saved_policy(tmp_path_factory.mktemp("master") / "policy", seed=7)
