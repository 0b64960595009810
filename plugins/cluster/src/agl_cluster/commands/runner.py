"""``agl runner``: run an agent on the rollouts of a store, in a process of its own or in several."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentlightning.child_environment import hidden_variables, hide_secrets
from agentlightning.cli.interrupts import exit_despite_threads, set_exit_status
from agentlightning.store.places import store_place
from agentlightning.types import UsageError
from agl_cluster.commands import add_command

if TYPE_CHECKING:
    from agentlightning.runner.runner import Runner
    from agentlightning.store import Store
    from agentlightning.train.config import RunConfig
    from agl_cluster.runners.service import RunnerState


@dataclass(frozen=True, kw_only=True)
class RunnerOptions:
    """The options of the command. Its worker processes get them too."""

    store: Annotated[
        str | None,
        typer.Option(
            help="URL or file of the store; default: that of --config, AGL_STORAGE, a default file."
        ),
    ] = None
    agent: Annotated[
        str | None, typer.Option(help="module:object; instead of agent.target or agent.command.")
    ] = None
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The run's YAML file.")] = None
    workers: Annotated[int, typer.Option(min=1, help="Processes; each is kept alive.")] = 1
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Rollouts at a time in each process; default: agent.concurrency, 16."),
    ] = None
    isolation: Annotated[
        str | None,
        typer.Option(
            help="inline, or process: an attempt can be killed when its time is up; default: agent.isolation."
        ),
    ] = None
    run: Annotated[str | None, typer.Option(help="Only the rollouts of this run.")] = None
    rollout: Annotated[str | None, typer.Option(help="Run this rollout, if it is in the queue, and end.")] = (
        None
    )
    worker_id: Annotated[
        str | None, typer.Option(help="Name of this runner in the store; default: a new one.")
    ] = None
    health: Annotated[
        str | None, typer.Option(help="host:port at which /healthz and /readyz are answered.")
    ] = None
    adapters: Annotated[
        list[str] | None, typer.Option("--adapter", help="Framework adapter to activate.")
    ] = None
    drain: Annotated[float, typer.Option(min=0, help="Seconds that running attempts have after SIGTERM.")] = (
        30.0
    )
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for a store that does not answer.")
    ] = 600.0
    timeout: Annotated[
        float | None, typer.Option(help="Seconds of an attempt whose rollout has no limit.")
    ] = None

    def run_config(self) -> RunConfig:
        """Return the description of ``--config``, or an empty one, with these options; and prepare to import
        the agent from where the file, or else the current folder, says.
        """
        from agentlightning.train.config import from_fields
        from agentlightning.train.run_file import load_config

        if self.config is not None:
            config = load_config(self.config)
        else:
            config = from_fields({"timeout_seconds": None})
            if "" not in sys.path and os.getcwd() not in sys.path:
                sys.path.insert(0, os.getcwd())
        given = {
            "concurrency": self.concurrency or config.agent.concurrency or 16,
            "isolation": self.isolation,
            "timeout_seconds": self.timeout,
            "adapters": self.adapters,
        }
        return from_fields({key: value for key, value in given.items() if value}, config, "agl runner")


def register(app: typer.Typer) -> None:
    add_command(app, "runner", RunnerOptions, run_runner)


def run_runner(options: RunnerOptions) -> None:
    """Run an agent on rollouts until SIGTERM (exit status 0) or Ctrl-C (130). AGL_SECRET: the secret of the
    run, if its rollouts call a gateway of Agent Lightning; or AGL_TOKEN: a token of the role runner (see `agl
    token`).
    """
    code = asyncio.run(_run(options))
    set_exit_status(code)
    if code:
        raise typer.Exit(code)


async def _run(options: RunnerOptions) -> int:
    """Run one worker in this process, or several as processes of their own, and return the exit status."""
    from agentlightning.redaction import redacted
    from agl_cluster.runners.status_line import StatusLine
    from agl_cluster.runners.supervisor import Supervisor

    if options.workers > 1:
        if options.rollout or options.worker_id or options.health:
            raise UsageError("--rollout, --worker-id and --health are for one runner: leave --workers out")
        _require_server(options)
    place = options.store or options.config or store_place() or "the default store"
    with StatusLine(redacted(place), options.workers) as line:
        if options.workers == 1:
            return await _serve(options, line.show)
        work = partial(_supervised, hidden_variables())
        return await Supervisor(work, options, options.workers, line.show).run()


def _supervised(
    secrets: dict[str, str], connection: Connection, supervisor: int, options: RunnerOptions
) -> None:
    """Run a worker process of a supervisor: this command without its status line. ``secrets``: what it does
    not inherit.
    """
    from agentlightning.cli import run_command
    from agl_cluster.process_tree import enter
    from agl_cluster.runners.supervisor import send_report

    enter(connection, supervisor)
    os.environ.update(secrets)
    hide_secrets()

    def work() -> None:
        code = asyncio.run(_serve(options, partial(send_report, connection)))
        set_exit_status(code)
        raise SystemExit(code)

    try:
        run_command(work)
    finally:
        exit_despite_threads()


async def _serve(options: RunnerOptions, report: Callable[[RunnerState], None]) -> int:
    from agentlightning.capture.installation import capturing
    from agentlightning.plugins.manager import load
    from agentlightning.runner.agent import instrumentors
    from agl_cluster.runners.health import serving_health
    from agl_cluster.runners.service import serve

    plugins = load()
    store, runner = _open(options, plugins)
    try:
        settings = runner.settings
        active = [] if settings.isolation == "process" else instrumentors(plugins, settings.adapters)
        with capturing(active):
            async with serving_health(runner, options.health):
                return await serve(runner, report, options.rollout)
    finally:
        await store.close()


def _open(options: RunnerOptions, plugins: Any) -> tuple[Store, Runner]:
    """Open the store and return it with a runner on it."""
    from agentlightning.keys import Keys
    from agentlightning.plugins.stores import open_store
    from agentlightning.runner.runner import Runner
    from agentlightning.train.configured import import_target, load_agent
    from agentlightning.types import new_id
    from agl_cluster.runners.attempt_keys import attempt_keys_for
    from agl_cluster.store.client import StoreClient

    config = options.run_config()
    if options.agent is not None:
        agent: Any = import_target(options.agent, "--agent")
    elif options.config is not None:
        agent = load_agent(config)
    else:
        raise UsageError("which agent? Give --agent module:object, or --config with agent.target")
    Keys.from_env()  # a secret that cannot be used is told before the store is opened
    store = open_store(options.store or config.store_location(), plugins=plugins)
    store.act_as("runner")
    if isinstance(store, StoreClient):
        store.patience = options.patience
    runner = Runner(
        agent,
        store,
        config.routed_agent,
        attempt_keys=attempt_keys_for(store),
        plugins=plugins,
        run_id=options.run,
        drain=options.drain,
        worker_id=options.worker_id or new_id("worker"),
    )
    return store, runner


def _require_server(options: RunnerOptions) -> None:
    """Raise :class:`UsageError` if the store is a file: only one process may write it."""
    from agentlightning.store.sqlite.store import store_file

    place = options.store or options.run_config().store_location() or store_place()
    if place is None or "://" not in place or place.startswith("sqlite:"):
        file = store_file(place)
        raise UsageError(
            f"--workers {options.workers} cannot share {file}: one process writes a store file. Start "
            f"`agl store {file}`, and give its URL with --store"
        )
