"""Opens the gateway of a run: in this process, or as processes of their own.

Processes open the run's store by its URL. A file has one writer, this process, which then serves its store to
them on loopback.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from agentlightning.child_environment import hidden_variables
from agentlightning.gateway.base import RunGateway
from agentlightning.gateway.settings import CallSection, GatewaySection
from agentlightning.specs import GatewayJob
from agentlightning.store.sql.store import SQLStore
from agentlightning.types.base import ConfigError
from agentlightning.webserver import app_runner, listen
from agl_cluster.gateways.main import Setup
from agl_cluster.gateways.pool import GatewayProcesses
from agl_cluster.gateways.watched import WatchedGateway
from agl_cluster.store.access import StoreAccess
from agl_cluster.store.app import create_app
from agl_cluster.store.client import StoreClient


@asynccontextmanager
async def opened_gateway(job: GatewayJob) -> AsyncIterator[RunGateway]:
    """Start the gateway of a run, and stop it at the end."""
    async with AsyncExitStack() as stack:
        given, fields = job.config.gateway, GatewaySection.model_fields
        settings = GatewaySection(**{name: getattr(given, name) for name in fields})
        gateway: WatchedGateway | GatewayProcesses
        if given.gateways:
            setup = _setup(job, settings, *await _place(job, stack))
            gateway = GatewayProcesses(job.keys, settings, given.gateways, setup, on_call=job.on_call)
        else:
            more: dict[str, Any] = {"on_call": job.on_call, "guards": job.guards, "plugins": job.plugins}
            gateway = WatchedGateway(job.store, job.keys, settings, job.calls, **more)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        yield gateway


def _setup(job: GatewayJob, settings: GatewaySection, url: str, token: str | None) -> bytes:
    """Return what each process begins with. ``url``, ``token``: of the store."""
    for guard in job.guards:
        guard.share()
    setup = Setup(
        secret=job.keys.secret,
        shared=job.keys.shared,
        store=url,
        token=token,
        settings=settings,
        calls=CallSection(select=job.calls.select, policies=job.calls.policies),
        guards=job.guards,
        watched=job.on_call is not None,
        variables=hidden_variables(),
    )
    try:
        return pickle.dumps(setup)
    except Exception as error:
        raise ConfigError(
            f"gateway.gateways: select, or a guard of calls, cannot be sent to other processes ({error}); "
            "give names to select, or a function of a module"
        ) from None


async def _place(job: GatewayJob, stack: AsyncExitStack) -> tuple[str, str | None]:
    """Return URL and token by which another process opens the run's store."""
    store, named = job.store, job.config.store
    if isinstance(store, StoreClient):
        return store.url, store.given_token
    if isinstance(named, str) and "://" in named and not named.startswith("sqlite:"):
        return named, None
    if not isinstance(store, SQLStore):
        raise ConfigError(
            f"gateway.gateways: other processes cannot open {type(store).__name__}; give the run a store by "
            "its place (a file, or the URL of `agl store`)"
        )
    token = secrets.token_urlsafe(32)
    runner = app_runner(create_app(store, StoreAccess(token)), shutdown_timeout=5.0)
    stack.push_async_callback(runner.cleanup)
    return await listen(runner), token
