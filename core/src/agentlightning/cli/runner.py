"""``agl runner``: run an agent on the rollouts of a store, in a process of its own or in several."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentlightning.cli.interrupts import exit_despite_threads, set_exit_status
from agentlightning.types import Model, UsageError

if TYPE_CHECKING:
    from agentlightning.runner import Runner
    from agentlightning.runner.service import RunnerState
    from agentlightning.store import Store


class Options(Model):
    """The options of the command, as its worker processes get them."""

    store: str | None
    agent: str | None
    config: str | None
    concurrency: int | None
    isolation: str
    run: str | None
    adapters: list[str]
    drain: float
    patience: float
    timeout: float | None


def register(app: typer.Typer) -> None:
    @app.command("runner")
    def runner(
        store: Annotated[
            str | None,
            typer.Option(help="URL or file of the store; default: the configuration's, AGL_STORAGE, ours."),
        ] = None,
        agent: Annotated[str | None, typer.Option(help="module:object; instead of agent.target.")] = None,
        config: Annotated[Path | None, typer.Option("--config", "-c", help="The run's YAML file.")] = None,
        workers: Annotated[int, typer.Option(min=1, help="Processes; each is kept alive.")] = 1,
        concurrency: Annotated[
            int | None,
            typer.Option(min=1, help="Rollouts at a time in each process; default: agent.concurrency, 16."),
        ] = None,
        isolation: Annotated[
            str, typer.Option(help="inline, or process: an attempt can be killed when its time is up.")
        ] = "inline",
        run: Annotated[str | None, typer.Option(help="Only the rollouts of this run.")] = None,
        adapter: Annotated[list[str] | None, typer.Option(help="Framework adapter to activate.")] = None,
        drain: Annotated[
            float, typer.Option(min=0, help="Seconds that running attempts have after SIGTERM.")
        ] = 30.0,
        patience: Annotated[
            float, typer.Option(min=0, help="Seconds to wait for a store that does not answer.")
        ] = 600.0,
        timeout: Annotated[
            float | None, typer.Option(help="Seconds of an attempt whose rollout has no limit.")
        ] = None,
    ) -> None:
        """Run an agent on rollouts until SIGTERM (exit status 0) or Ctrl-C (130). AGL_SECRET: the secret of
        the run, if its gateway is ours.
        """
        options = Options(
            store=store,
            agent=agent,
            config=None if config is None else str(config),
            concurrency=concurrency,
            isolation=isolation,
            run=run,
            adapters=adapter or [],
            drain=drain,
            patience=patience,
            timeout=timeout,
        )
        code = asyncio.run(_run_worker(options) if workers == 1 else _supervise(options, workers))
        set_exit_status(code)
        if code:
            raise typer.Exit(code)


async def _supervise(options: Options, workers: int) -> int:
    from agentlightning.runner.status_line import StatusLine
    from agentlightning.runner.supervisor import Supervisor

    _require_server(options, workers)
    with StatusLine(_store_name(options), workers) as line:
        return await Supervisor(_supervised, options, workers, line.show).run()


def _supervised(connection: Connection, supervisor: int, options: Options) -> None:
    """A worker process of a supervisor: this command without its status line."""
    from agentlightning.cli import run_command
    from agentlightning.runner.processes.process_tree import enter
    from agentlightning.runner.supervisor import send_report

    enter(connection, supervisor)

    def work() -> None:
        code = asyncio.run(_serve(options, partial(send_report, connection)))
        set_exit_status(code)
        raise SystemExit(code)

    try:
        run_command(work)
    finally:
        exit_despite_threads()


async def _run_worker(options: Options) -> int:
    """The one worker of this command, to its end."""
    from agentlightning.runner.status_line import StatusLine

    with StatusLine(_store_name(options), 1) as line:
        return await _serve(options, line.show)


async def _serve(options: Options, report: Callable[[RunnerState], None]) -> int:
    from agentlightning.capture.instrument.sessions import capturing
    from agentlightning.plugins.manager import load
    from agentlightning.runner.agent.adapters import instrumentors
    from agentlightning.runner.service import serve

    plugins = load()
    store, runner = _open(options, plugins)
    try:
        with capturing([] if options.isolation == "process" else instrumentors(plugins, options.adapters)):
            return await serve(runner, report)
    finally:
        await store.close()


def _open(options: Options, plugins: Any) -> tuple[Store, Runner]:
    """Store and runner as the options and the configuration say; the options win."""
    from agentlightning.plugins.stores import open_store
    from agentlightning.runner import Runner, attempt_keys_from_env
    from agentlightning.store import StoreClient
    from agentlightning.train.configured import import_target
    from agentlightning.train.run_file import load_config

    place, target, timeout = options.store, options.agent, options.timeout
    concurrency, adapters = options.concurrency, options.adapters
    if options.config is not None:
        config = load_config(options.config)
        place = place or config.store_location()
        target = target or config.agent.target
        timeout = timeout or config.agent.timeout_seconds
        concurrency = concurrency or config.agent.concurrency
        adapters = adapters or config.agent.adapters
    elif "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    if target is None:
        raise UsageError("which agent? Give --agent module:object, or --config with agent.target")
    agent = import_target(target, "--agent" if options.agent else "agent.target")
    attempt_keys = attempt_keys_from_env()
    store = open_store(place, plugins=plugins)
    if isinstance(store, StoreClient):
        store.patience = options.patience
    isolation: Any = options.isolation
    runner = Runner(
        agent,
        store,
        attempt_keys=attempt_keys,
        plugins=plugins,
        run_id=options.run,
        concurrency=concurrency or 16,
        timeout_seconds=timeout,
        drain=options.drain,
        isolation=isolation,
        adapters=adapters,
    )
    return store, runner


def _require_server(options: Options, workers: int) -> None:
    from agentlightning.store.sqlite.store import store_file
    from agentlightning.train.run_file import load_config

    place = options.store
    if place is None and options.config is not None:
        place = load_config(options.config).store_location()
    place = place or os.environ.get("AGL_STORAGE") or None
    if place is None or "://" not in place or place.startswith("sqlite:"):
        file = store_file(place)
        raise UsageError(
            f"--workers {workers} cannot share {file}: one process writes a store file. Start "
            f"`agl store {file}`, and give its URL with --store"
        )


def _store_name(options: Options) -> str:
    return options.store or options.config or os.environ.get("AGL_STORAGE") or "the default store"
