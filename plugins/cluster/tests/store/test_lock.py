"""A file that a server writes is locked, and the server named."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.store import SQLiteStore
from agentlightning.store.sqlite.lock import Locked
from agl_cluster.store.server import start


async def test_a_server_is_named(tmp_path: Path) -> None:
    served = await start(tmp_path / "s.sqlite", port=0)
    with pytest.raises(Locked, match=rf"Write through its server: open_store\('{served.url}'\)"):
        SQLiteStore(tmp_path / "s.sqlite")
    await served.close()
