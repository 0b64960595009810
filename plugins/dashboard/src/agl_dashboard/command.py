"""``agl dashboard``: serve the pages until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
from typing import Annotated

import typer

from agentlightning.plugins.manager import Plugins, build, load
from agentlightning.types import UsageError
from agentlightning.webserver.loopback import cannot_listen
from agl_dashboard.data.places import Places
from agl_dashboard.server.access import TOKEN_VARIABLE, Access
from agl_dashboard.server.app import Dashboard, start


def register(app: typer.Typer) -> None:
    @app.command("dashboard")
    def dashboard(
        what: Annotated[
            str | None,
            typer.Argument(
                metavar="[RUN|STORE|URL]",
                help="A run, a folder of runs, a store's file or URL; default: runs/ and AGL_STORAGE.",
            ),
        ] = None,
        host: Annotated[
            str, typer.Option(help=f"Address to listen on. Anything but loopback needs {TOKEN_VARIABLE}.")
        ] = "127.0.0.1",
        plugin: Annotated[
            list[str] | None,
            typer.Option(help="A module with views of rollouts (agl_rollout_views) that no plugin brings."),
        ] = None,
        port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks one.")] = 8080,
    ) -> None:
        """Show runs, rollouts, calls and tokens in a browser, live while a run trains.

        Prints an address with a key that opens the pages once, in one browser; each use prints the next one.
        Nothing that is shown can be changed from the browser.
        """
        asyncio.run(_serve(what, host, port, plugins_with(plugin or [])))


def plugins_with(modules: list[str]) -> Plugins:
    """Return the installed plugins and those of ``modules``, found from the working directory, too."""
    if not modules:
        return load()
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return build([importlib.import_module(name) for name in modules])
    except ImportError as error:
        raise UsageError(f"--plugin: {error}; PYTHONPATH says where modules are") from error


async def _serve(what: str | None, host: str, port: int, plugins: Plugins) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop.set)
        except (RuntimeError, ValueError, NotImplementedError):  # not the main thread: cancellation ends it
            break
    places = Places(what, plugins)
    places.require()
    access = Access.from_env(say=typer.echo)
    try:
        dashboard: Dashboard = await start(places, access, host, port)
    except OSError as error:
        raise cannot_listen("the dashboard", host, port, error, "--port") from error
    try:
        access.announce(dashboard.url)
        await stop.wait()
    finally:
        await dashboard.close()
