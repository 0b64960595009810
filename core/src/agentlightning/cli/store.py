"""``agl store``: serve a store over HTTP."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command("store")
    def store(
        path: Annotated[
            str | None,
            typer.Argument(help="SQLite file or folder; default: AGL_STORAGE, else ~/.agent-lightning."),
        ] = None,
        host: Annotated[
            str, typer.Option(help="Address to listen on. Anything but loopback needs AGL_TOKEN.")
        ] = "127.0.0.1",
        port: Annotated[int, typer.Option(help="Port; 0 picks one.")] = 4747,
    ) -> None:
        """Serve a durable store until SIGTERM or Ctrl-C. Clients: agl.LightningStoreClient("http://localhost:4747")."""
        from agentlightning.store import server

        token = os.environ.get("AGL_TOKEN")

        async def main() -> None:
            await server.serve(
                path, host=host, port=port, token=token, ready=lambda url: typer.echo(f"agl store on {url}")
            )

        asyncio.run(main())
