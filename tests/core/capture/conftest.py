"""An attempt whose spans are kept, a scripted server, and capture switched on around each test that asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from contract.capturing import Recording
from contract.model_server import ModelServer

from agentlightning import capture


@pytest.fixture
def capturing() -> Iterator[None]:
    capture.COUNTS.clear()
    capture.install()
    yield
    capture.uninstall()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with ModelServer(ids="always") as server:
        yield server


@pytest.fixture
def recording(server: ModelServer) -> Recording:
    return Recording("wire", server.url)
