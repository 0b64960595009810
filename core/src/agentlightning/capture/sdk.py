"""The wire layer: record every model call of an SDK as a span with the engine's own token ids.

One private method of the SDK carries all its calls (``create``, ``parse``, ``stream``, raw responses; sync
and async; openai 1.93 to 3, and anthropic, which the same generator makes), so one patch sees them all. In
requests to the gateway it also says who is calling. Invariant: the attempt's key goes to the attempt's
gateway and nowhere else; other endpoints see the request unchanged. If an SDK lacks that method,
:func:`call_methods` warns, and only the gateway records its calls.

Within attempts each event loop has a client of its own, and all clients share one SSL context. An
``AsyncOpenAI`` keeps connections of the event loop that opened them: on another loop, say in each
``asyncio.run`` of an agent's, every second call fails with "Event loop is closed". So a loop that is not the
client's first gets a copy of it with an HTTP client of its own, which keeps no idle connection: nobody would
close it. And an agent that makes a client for each rollout makes an SSL context each time, which takes long
enough for many of them at once to hold up their event loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from functools import lru_cache, partial
from importlib import import_module
from typing import Any, Final, Self

from agentlightning.capture.context import current_attempt
from agentlightning.capture.delivery import COUNTS
from agentlightning.capture.sdk_call import CURRENT_CALL, SDKCall, open_call, sending
from agentlightning.capture.sdk_response import is_answer
from agentlightning.log_limit import limited
from agentlightning.types.select import BadSelect

_LOG = limited(__name__)
OPENAI: Final = "openai >= 1.93, < 4"
"""The tested range of the openai SDK."""


def call_methods(sdk: str, tested: str) -> list[tuple[type, str, Callable[..., Any]]]:
    """Return the methods that carry an SDK's calls, as class, name and wrapper of each. Warn about an SDK
    without them, and return none."""
    try:
        base = import_module(f"{sdk}._base_client")
        clients = (base.SyncAPIClient, _sync), (base.AsyncAPIClient, _async)
        for client, _ in clients:
            if "request" not in vars(client):
                raise AttributeError(f"{client.__name__}.request")
    except (ImportError, AttributeError) as error:
        COUNTS.add("wire-unavailable")
        warnings.warn(
            f"this version of the {sdk} SDK cannot be instrumented ({error}): calls are captured at the "
            f"gateway only, and none will be verified as exact; install {tested}",
            RuntimeWarning,
            stacklevel=4,
        )
        return []
    found: list[tuple[type, str, Callable[..., Any]]] = [
        (client, "request", partial(wrapper, sdk)) for client, wrapper in clients
    ]
    for made in ("DefaultHttpxClient", "DefaultAsyncHttpxClient"):
        if hasattr(base, made):
            found.append((getattr(base, made), "__init__", share_ssl_context))
    if hasattr(base.BaseClient, "_build_request"):
        found.append((base.BaseClient, "_build_request", _count_retries))
    else:
        COUNTS.add("wire-retries-unknown")
    return found


def _sync(
    sdk: str, wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call, args, kwargs = _open(sdk, client, args, kwargs)
    if call is None:
        return wrapped(*args, **kwargs)
    with sending(call):
        result = wrapped(*args, **kwargs)
    return _observe(call, result)


async def _async(
    sdk: str, wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if current_attempt() is not None and (here := of_this_loop(sdk, client)) is not client:
        return await here.request(*args, **kwargs)
    call, args, kwargs = _open(sdk, client, args, kwargs)
    if call is None:
        return await wrapped(*args, **kwargs)
    with sending(call):
        result = await wrapped(*args, **kwargs)
    return _observe(call, result)


def _count_retries(
    wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if (call := CURRENT_CALL.get()) is not None:
        call.retries = int(kwargs.get("retries_taken", 0))
    return wrapped(*args, **kwargs)


def _open(
    sdk: str, client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[SDKCall | None, tuple[Any, ...], dict[str, Any]]:
    """Return the call to record, or ``None``, and the arguments to pass on."""
    try:
        named = "options" in kwargs
        opened = open_call(sdk, client, kwargs["options"] if named else args[1])
        if opened is None:
            return None, args, kwargs
        call, options = opened
        if named:
            return call, args, {**kwargs, "options": options}
        return call, (args[0], options, *args[2:]), kwargs
    except BadSelect:  # without the select, nobody has decided whether to train the call
        raise
    except Exception:
        COUNTS.add("wire-error")
        _LOG.warning("a model call could not be recorded by the wire layer", exc_info=True)
        return None, args, kwargs


def _observe(call: SDKCall, result: Any) -> Any:
    """Record ``result`` and return it unchanged. Record a stream while the user reads it."""
    try:
        kind = type(result).__name__
        if kind in ("APIResponse", "AsyncAPIResponse"):
            _observe_parsing(call, result)
        else:  # the SDK keeps what a LegacyAPIResponse parses to
            _observe_parsed(call, result.parse() if kind == "LegacyAPIResponse" else result)
    except Exception as error:  # e.g. a structured output that does not parse: the SDK raises it to the user
        COUNTS.add("wire-not-read")
        call.end(error)
    return result


def _observe_parsing(call: SDKCall, raw: Any) -> None:
    """Record a raw response when the user parses its body; count it as unread if that never happens."""
    kind, itself = type(raw), weakref.ref(raw)
    given_up = weakref.finalize(raw, call.end_unread)

    def parse(*args: Any, **kwargs: Any) -> Any:
        parsed = kind._parse(itself(), *args, **kwargs)
        given_up.detach()
        _observe_parsed(call, parsed)
        return parsed

    def close() -> Any:
        given_up()
        return kind.close(itself())

    raw._parse, raw.close = parse, close


def _observe_parsed(call: SDKCall, parsed: Any) -> None:
    sdk = import_module(call.sdk)
    if isinstance(parsed, sdk.Stream | sdk.AsyncStream):
        parsed._iterator = RecordedStream(call, parsed._iterator)
    elif is_answer(parsed):
        call.add_whole(parsed)
        call.end()
    else:  # the user reads the body
        call.end_unread()


class RecordedStream:
    """The iterator of a stream, sync or async, that adds each chunk to its call.

    The call ends with the stream, with its error, or when the user drops the stream before its end.
    """

    def __init__(self, call: SDKCall, chunks: Any) -> None:
        self._call, self._chunks = call, chunks

    def __iter__(self) -> Self:
        return self

    def __aiter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            chunk = next(self._chunks)
        except BaseException as error:
            self._end(error)
            raise
        self._call.add_chunk(chunk)
        return chunk

    async def __anext__(self) -> Any:
        try:
            chunk = await anext(self._chunks)
        except BaseException as error:
            self._end(error)
            raise
        self._call.add_chunk(chunk)
        return chunk

    def _end(self, error: BaseException) -> None:
        self._call.end(None if isinstance(error, StopIteration | StopAsyncIteration) else error)

    def __del__(self) -> None:
        self._call.end(complete=False)


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
