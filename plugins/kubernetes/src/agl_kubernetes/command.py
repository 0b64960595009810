"""``agl kubernetes``: run rollouts as Jobs, or print the manifests of runners."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentlightning.plugins.manager import load
from agentlightning.plugins.options import checked_options, open_runner
from agentlightning.plugins.stores import open_store
from agentlightning.redaction import say
from agentlightning.specs import RunnerJob
from agentlightning.train.run_file import load_config, read_overrides
from agentlightning.types import UsageError
from agl_cluster.store.client import StoreClient
from agl_kubernetes.agents import agent_in_image
from agl_kubernetes.jobs import JobMaker
from agl_kubernetes.manifests import as_yaml, deployment_manifests, job_manifests
from agl_kubernetes.settings import KubernetesOptions

if TYPE_CHECKING:
    from agentlightning.train.config import RunConfig

KIND = "kubernetes"
Mode = Literal["deployment", "jobs"]
Config = Annotated[
    Path, typer.Option("--config", "-c", help="The run's YAML file; it has runner: {kind: kubernetes, …}.")
]
Sets = Annotated[list[str] | None, typer.Option("--set", help="key=value, in place of the file's.")]
Run = Annotated[str | None, typer.Option(help="Only the rollouts of this run.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Run rollouts as Jobs of Kubernetes, or print the manifests of runners.", no_args_is_help=True
    )

    @group.command("manifests")
    def manifests(
        config: Config,
        mode: Annotated[
            Mode,
            typer.Option(help="deployment: long-lived runners. jobs: a controller, and one Job a rollout."),
        ] = "deployment",
        sets: Sets = None,
        run: Run = None,
    ) -> None:
        """Print the YAML of all objects: agl kubernetes manifests -c run.yaml | kubectl apply -f -"""
        sys.stdout.write(manifests_of(load_config(config, read_overrides(sets)), mode, run))

    @group.command("run")
    def run_jobs(config: Config, sets: Sets = None, run: Run = None) -> None:
        """Make one Job for each queued rollout of the store until SIGTERM or Ctrl-C. Jobs that run go on."""
        asyncio.run(_run(load_config(config, read_overrides(sets)), run))

    app.add_typer(group, name=KIND)


def manifests_of(config: RunConfig, mode: Mode, run_id: str | None) -> str:
    """Return the YAML of a run's runners."""
    given: dict[str, Any] = dict(config.runner or {})
    if given.pop("kind", None) != KIND:
        raise UsageError(
            "runner: the file describes no runner of the kind kubernetes: give {kind: kubernetes, image: …}"
        )
    options = checked_options(KubernetesOptions, given, "runner")
    store = options.store or config.store_location()
    if not isinstance(store, str) or not store.startswith(("http://", "https://")):
        raise UsageError(
            "store: pods reach a store by its URL: serve it with `agl store`, and give http(s)://…"
        )
    job = RunnerJob(config, StoreClient(store), run_id=run_id)
    maker = JobMaker(options, store, agent_in_image(job, options), run_id)
    if options.gateway is None and config.gateway.advertise is not None:
        options = options.model_copy(update={"gateway": config.gateway.advertise})
    make = deployment_manifests if mode == "deployment" else job_manifests
    return as_yaml(make(options, maker), options, mode)


async def _run(config: RunConfig, run_id: str | None) -> None:
    plugins = load()
    store = open_store(config.store_location(), plugins=plugins)
    try:
        store.act_as("trainer")
        runner = open_runner(plugins, RunnerJob(config, store, run_id=run_id))
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        say(f"agl kubernetes: Jobs for the rollouts of {store!r}", file=sys.stderr)
        try:
            await runner.serve(stop)
        finally:
            counted = ", ".join(f"{n} {name}" for name, n in sorted(runner.counts.items()))
            say(f"agl kubernetes: {counted or 'nothing was done'}", file=sys.stderr)
    finally:
        await store.close()
