"""An attempt whose spans are kept, a scripted server, and capture switched on around each test that asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from agl_testing import ScriptedModelServer
from contract.recording import Recording

from agentlightning import capture


@pytest.fixture
def capturing() -> Iterator[None]:
    capture.COUNTS.clear()
    capture.install()
    yield
    capture.uninstall()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(ids="always") as server:
        yield server


@pytest.fixture
def recording(server: ScriptedModelServer) -> Recording:
    return Recording("wire", server.url)
