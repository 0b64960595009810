"""Registers stores over HTTP, ``agl store``, ``agl token`` and ``agl runner``, gateway processes, worker
processes of agents, and what keeps or shows a run while it lasts.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import (
    CommandSpec,
    GatewayJob,
    RunServiceSpec,
    SectionSpec,
    StoreOperationSpec,
    StoreSpec,
    lazily,
    lazy_type,
)

if TYPE_CHECKING:
    from agentlightning.runner.execution import RunOnLoop
    from agl_cluster.runners.workers import WorkerPool
    from agl_cluster.store.client import StoreClient


@hookimpl
def agl_stores() -> list[StoreSpec]:
    return [StoreSpec("http", _client), StoreSpec("https", _client)]


def _client(url: str) -> StoreClient:
    from agentlightning.webserver.loopback import token_from_env
    from agl_cluster.store.client import StoreClient

    return StoreClient(url, token_from_env("AGL_TOKEN"))


@hookimpl
def agl_store_operations() -> list[StoreOperationSpec]:
    return [StoreOperationSpec("batch", lazy_type("agl_cluster.store.batch:batch"))]


@hookimpl
def agl_commands() -> list[CommandSpec]:
    commands = {
        "store": "serve a store",
        "token": "make a token of a role for a store's server, or revoke one",
        "runner": "run an agent on a store's rollouts",
    }
    return [
        CommandSpec(name, lazily(f"agl_cluster.commands.{name}:register"), about)
        for name, about in commands.items()
    ]


@hookimpl
def agl_sections() -> list[SectionSpec]:
    return [
        SectionSpec("gateways", "gateway", lazy_type("agl_cluster.settings:GatewayFields")),
        SectionSpec("metrics", "", lazy_type("agl_cluster.settings:MetricsFields")),
    ]


@hookimpl
def agl_gateways(job: GatewayJob) -> Any:
    from agl_cluster.gateways.opening import opened_gateway

    return opened_gateway(job)


@hookimpl
def agl_worker_pools(agent: Any, settings: Any, counts: Counter[str]) -> WorkerPool:
    from agl_cluster.runners.workers import WorkerPool

    return WorkerPool(agent, settings, counts)


@hookimpl
def agl_agent_loops() -> RunOnLoop:
    from agl_cluster.runners.watched_loops import run_watched

    return run_watched


@hookimpl
def agl_run_services() -> list[RunServiceSpec]:
    return [
        RunServiceSpec("storage", _storage, "keeps the files of runs at AGL_STORAGE"),
        RunServiceSpec("metrics", _metrics, "answers GET /metrics while a run trains"),
    ]


def _storage(config: Any) -> AbstractAsyncContextManager[object] | None:
    from agentlightning.store.places import artifact_place

    if (place := artifact_place()) is None:
        return None
    from agentlightning.train.run_folder import say
    from agl_cluster.storage.keeper import keeping

    return keeping(place, Path(config.output), config.run if config.resume else None, say)


def _metrics(config: Any) -> AbstractAsyncContextManager[object] | None:
    # A description that was read without this plugin has no such field.
    if (place := getattr(config, "metrics", None)) is None:
        return None
    from agl_cluster.run_metrics import serving_metrics

    return serving_metrics(place)
