"""A place where the tests run commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from agl_testing import ScriptedModelServer

from plugins.programs.tests.commands.running import Bench, bench


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedModelServer]:
    with ScriptedModelServer() as one:
        yield one


@pytest.fixture
async def here(server: ScriptedModelServer) -> AsyncIterator[Bench]:
    async with bench(server) as one:
        yield one
