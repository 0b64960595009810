"""The contract of drivers, kept by the local one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from contract.driver import RECIPE, DriverContract

from agentlightning.types import Recipe
from agentlightning.types.work import PolicyFolder
from agl_local.driver import LocalDriver
from plugins.local.tests.driver_fixtures import saved_policy


class TestLocal(DriverContract):
    @pytest.fixture(autouse=True)
    def policy(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.folder: Path = saved_policy(tmp_path_factory.mktemp("policy") / "tiny")

    def make(self, recipe: Recipe = RECIPE, **options: Any) -> LocalDriver:
        given = {"lr": 1e-3, "engine": "thread", "threads": 1, **options}
        return LocalDriver(PolicyFolder(str(self.folder), name="tiny", options=given), recipe)
