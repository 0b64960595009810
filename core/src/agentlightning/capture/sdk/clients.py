"""The HTTP clients of an SDK within attempts: one for each event loop, and one SSL context for all.

An ``AsyncOpenAI`` keeps connections of the event loop that opened them. On another loop, say in each
``asyncio.run`` of an agent's, every second call fails with "Event loop is closed". So a loop that is not the
client's first gets a copy of it with an HTTP client of its own, which keeps no idle connection: nobody would
close it. And an agent that makes a client for each rollout makes an SSL context each time, which takes long
enough for many of them at once to hold up their event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import weakref
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import Any

from agentlightning.capture.context import current_attempt
from agentlightning.capture.counts import COUNTS

_LOG = logging.getLogger(__name__)
_ANOTHER_LOOP = "client-on-another-loop"
"""The count of calls by a client of another event loop that could not be copied for this one."""


class _Copies:
    """The copies of one client. ``home``: its own loop, where it made its first call."""

    def __init__(self, home: asyncio.AbstractEventLoop) -> None:
        self.home = weakref.ref(home)
        self.by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Any] = weakref.WeakKeyDictionary()


_copies: weakref.WeakKeyDictionary[Any, _Copies] = weakref.WeakKeyDictionary()


def of_this_loop(sdk: str, client: Any) -> Any:
    """Return an asynchronous client itself on its own event loop, on others its copy. A client that cannot be
    copied, because its HTTP client is the user's, is returned too: counted, and reported once.
    """
    loop = asyncio.get_running_loop()
    known = _copies.setdefault(client, _Copies(loop))
    if known.home() is loop or client.is_closed():
        return client
    if (copy := known.by_loop.get(loop)) is None:
        if (copy := _copied(sdk, client, loop)) is None:
            return client
        known.by_loop[loop] = copy
    return copy


def _copied(sdk: str, client: Any, loop: asyncio.AbstractEventLoop) -> Any:
    try:
        base = import_module(f"{sdk}._base_client")
        if type(client._client) is base.AsyncHttpxClientWrapper:
            most = base.DEFAULT_CONNECTION_LIMITS
            limits = type(most)(max_connections=most.max_connections, max_keepalive_connections=0)
            copy = client.copy(http_client=base.DefaultAsyncHttpxClient(limits=limits))
            _copies[copy] = _Copies(loop)
            return copy
    except Exception:
        _LOG.debug("a client could not be copied", exc_info=True)
    COUNTS.add(_ANOTHER_LOOP)
    _warn_once(type(client).__name__)
    return None


@lru_cache
def _warn_once(kind: str) -> None:
    _LOG.warning(
        "one %s with an http_client of its own is used on several event loops: calls over connections of "
        "another loop fail (RuntimeError: Event loop is closed, or APIConnectionError). Make the client "
        "inside the agent, `async with %s(…) as client`, or leave http_client out.",
        kind,
        kind,
    )


def share_ssl_context(
    wrapped: Callable[..., Any], http_client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Wraps ``__init__`` of an SDK's own HTTP clients: inside attempts those with default settings share one
    SSL context. HTTP/2 would write into it.
    """
    own = {"verify", "cert", "http2", "transport", "trust_env"} & kwargs.keys()
    if current_attempt() is not None and not own:
        package = next(c for c in type(http_client).__mro__ if c.__name__ in ("Client", "AsyncClient"))
        named = package.__module__.partition(".")[0]
        certificates = tuple(os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"))
        kwargs = {**kwargs, "verify": _ssl_context(named, certificates)}
    return wrapped(*args, **kwargs)


@lru_cache(maxsize=4)
def _ssl_context(package: str, certificates: tuple[str | None, ...]) -> Any:
    """Return the context that ``package`` (httpx) makes of the environment's certificates."""
    return sys.modules[package].create_ssl_context()
