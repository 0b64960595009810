"""The state machine of the store, with two stores in files: asked directly, and over HTTP."""

from __future__ import annotations

from pathlib import Path

from core.store.test_state import Side, StoreMachine
from hypothesis import settings
from marks import examples

from agl_cluster.store.client import StoreClient
from agl_cluster.store.server import start


class SideOverHttp(Side):
    """A store that is asked through its server."""

    async def open(self) -> None:
        await super().open()
        self.served = await start(self.owner, port=0)
        self.store = StoreClient(self.served.url)

    async def close(self) -> None:
        await self.store.close()
        await self.served.close()
        await super().close()


class ServedMachine(StoreMachine):
    """All rules, on both."""

    def make_sides(self) -> list[Side]:
        paths = Path(self.folder.name)
        return [Side(paths / "0.sqlite", self.clock), SideOverHttp(paths / "1.sqlite", self.clock)]


ServedMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
TestServedMachine = ServedMachine.TestCase
