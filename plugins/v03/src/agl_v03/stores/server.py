"""``LightningStoreServer`` of v0.3: serve a store over HTTP from this process."""

from __future__ import annotations

from typing import Any

from agentlightning.plugins.stores import open_store
from agentlightning.types import UsageError
from agl_cluster.store.server import ServedStore, start
from agl_v03.stores.v03_store import V03Store, plain_store


class LightningStoreServer(V03Store):
    """``store`` here, and at ``http://host:port`` for other processes, between :meth:`start` and
    :meth:`stop`. ``port=0`` takes a free one. It serves on the event loop of :meth:`start`; ``agl store`` is
    a process of its own.
    """

    def __init__(
        self, store: Any = None, host: str | None = None, port: int | None = None, **options: Any
    ) -> None:
        if options:
            raise UsageError(
                f"LightningStoreServer: there is no {', '.join(sorted(options))} here; the server runs on "
                "the loop that starts it"
            )
        super().__init__(plain_store(store) or open_store(None))
        self.host, self.port = host or "127.0.0.1", 4747 if port is None else port
        self._served: ServedStore | None = None

    @property
    def endpoint(self) -> str:
        """The server's URL."""
        if self._served is None:
            raise UsageError("the store is not served yet: await server.start()")
        return self._served.url

    async def start(self) -> None:
        """Serve. Raise UsageError for a store that this process does not hold itself."""
        from agentlightning.store.sql.store import SQLStore

        if not isinstance(self.store, SQLStore):
            raise UsageError(f"{self.store!r} is served elsewhere already: give its URL to the others")
        if self._served is None:
            self._served = await start(self.store, self.host, self.port)

    async def stop(self) -> None:
        """Stop serving and close the store."""
        if self._served is not None:
            served, self._served = self._served, None
            await served.close()
