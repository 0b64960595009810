"""The state machine of the store, with two stores in PostgreSQL: asked directly, and over HTTP.

Between any two steps each may be closed and opened anew; what a killed server or process does is in the drill
(`tests/drills/postgres.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contract.postgres_server import PostgresServer
from core.store.test_state import Side, StoreMachine
from hypothesis import settings
from marks import examples

from agentlightning.store.sql.store import SQLStore
from plugins.cluster.tests.store.test_state import SideOverHttp
from plugins.postgres.tests.conftest import NEVER

pytest.importorskip("agl_postgres.store")
from agl_postgres.store import PostgresStore

_SERVERS: list[PostgresServer] = []


@pytest.fixture(autouse=True, scope="module")
def its_server(server: PostgresServer) -> Iterator[None]:
    _SERVERS.append(server)
    yield
    _SERVERS.clear()


class PostgresSide(Side):
    """A store in a schema of its own."""

    url = ""

    def make(self) -> SQLStore:
        self.url = self.url or _SERVERS[0].url(_SERVERS[0].schema())
        return PostgresStore(self.url, clock=self.clock, look_seconds=NEVER)

    async def crash(self) -> None:
        """End, and begin anew."""
        await self.close()
        await self.open()


class PostgresOverHttp(SideOverHttp, PostgresSide):
    """The same, asked through its server."""


class PostgresMachine(StoreMachine):
    """All rules, on PostgreSQL."""

    def make_sides(self) -> list[Side]:
        return [PostgresSide(Path(), self.clock), PostgresOverHttp(Path(), self.clock)]


PostgresMachine.TestCase.settings = settings(max_examples=examples(20), stateful_step_count=40, deadline=None)
TestPostgresMachine = pytest.mark.slow(PostgresMachine.TestCase)
