"""Opens the gateway of a run: in this process, or as processes of their own.

Processes of their own open the run's store by its URL. A file has one writer, this process, which then serves
its store to them on loopback.
"""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from agentlightning.child_environment import hidden_variables
from agentlightning.gateway import Gateway
from agentlightning.gateway.base import RunGateway
from agentlightning.gateway.settings import CallSection
from agentlightning.keys import Keys
from agentlightning.plugins.manager import Plugins
from agentlightning.specs import CallGuard
from agentlightning.store import Store, StoreClient
from agentlightning.train.description.run_config import RunConfig
from agentlightning.types import Call
from agentlightning.types.base import ConfigError


async def open_gateway(
    config: RunConfig,
    calls: CallSection,
    store: Store,
    plugins: Plugins,
    guards: Sequence[CallGuard],
    stack: AsyncExitStack,
) -> RunGateway:
    """Start the gateway of a run; ``stack`` stops it. ``calls``: which calls are trained."""
    keys, on_call = Keys.from_env(), _call_recorded(plugins)
    if not config.gateway.gateways:
        gateway = Gateway(store, keys, config.gateway, calls, on_call=on_call, guards=guards, plugins=plugins)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        return gateway
    from agentlightning.gateway.processes.pool import GatewayProcesses

    url, token = await _place(config, store, stack)
    setup = _setup(config, calls, keys, guards, url, token, watched=on_call is not None)
    several = GatewayProcesses(keys, config.gateway, setup, on_call=on_call)
    stack.push_async_callback(several.stop)
    await several.start()
    return several


def _setup(
    config: RunConfig,
    calls: CallSection,
    keys: Keys,
    guards: Sequence[CallGuard],
    url: str,
    token: str | None,
    *,
    watched: bool,
) -> bytes:
    """Return what each process begins with."""
    from agentlightning.gateway.processes.main import Setup

    setup = Setup(
        secret=keys.secret,
        shared=keys.shared,
        store=url,
        token=token,
        settings=config.gateway,
        calls=CallSection(select=calls.select, policies=calls.policies),
        guards=guards,
        watched=watched,
        variables=hidden_variables(),
    )
    try:
        return pickle.dumps(setup)
    except Exception as error:
        raise ConfigError(
            f"gateway.gateways: select cannot be sent to other processes ({error}); give names, or a "
            "function of a module"
        ) from None


async def _place(config: RunConfig, store: Store, stack: AsyncExitStack) -> tuple[str, str | None]:
    """Return URL and token by which another process opens the run's store."""
    from agentlightning.store.http.access import StoreAccess
    from agentlightning.store.http.server import create_app
    from agentlightning.store.sql.store import SQLStore
    from agentlightning.webserver import app_runner, listen

    if isinstance(store, StoreClient):
        return store.url, store.given_token
    if isinstance(config.store, str) and "://" in config.store and not config.store.startswith("sqlite:"):
        return config.store, None
    if not isinstance(store, SQLStore):
        raise ConfigError(
            f"gateway.gateways: other processes cannot open {type(store).__name__}; give the run a store by "
            "its place (a file, or the URL of `agl store`)"
        )
    token = secrets.token_urlsafe(32)
    runner = app_runner(create_app(store, StoreAccess(token)), shutdown_timeout=5.0)
    stack.push_async_callback(runner.cleanup)
    return await listen(runner), token


def _call_recorded(plugins: Plugins) -> Callable[[Call], None] | None:
    """Return the hook of recorded calls, ``None`` if no plugin listens: the gateway then skips it."""
    if not plugins.has_listeners("agl_call_recorded"):
        return None
    return lambda call: plugins.notify("agl_call_recorded", call=call)
