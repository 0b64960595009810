"""The wire layer: every model call of the openai SDK becomes a span with the engine's own token ids.

One private method of the SDK carries all its calls (``create``, ``parse``, ``stream``, raw responses; sync
and async; openai 1.93 to 3), so one patch sees them all. Towards the gateway it also says who is calling.
Invariant: the attempt's key goes to the attempt's gateway and nowhere else; other endpoints see the request
unchanged.

If the SDK has lost that method, :meth:`WireInstrumentor.instrument` warns and capture goes on at the gateway
only.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.counts import COUNTS
from agentlightning.capture.patching import Patch
from agentlightning.capture.wire_call import WireCall, current_call, open_call
from agentlightning.capture.wire_result import AsyncTee, Tee

_LOG = logging.getLogger(__name__)


class WireInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments the openai SDK. ``available`` says whether the SDK still has what it needs."""

    available = False
    _patches: tuple[Patch, ...] = ()

    def instrumentation_dependencies(self) -> Collection[str]:
        """The tested range."""
        return ("openai >= 1.93, < 4",)

    def _instrument(self, **kwargs: Any) -> None:
        try:
            import openai._base_client as base

            clients = (base.SyncAPIClient, _sync), (base.AsyncAPIClient, _async)
            for client, _ in clients:
                if "request" not in vars(client):
                    raise AttributeError(f"{client.__name__}.request")
        except (ImportError, AttributeError) as error:
            self.available = False
            COUNTS.add("wire-unavailable")
            warnings.warn(
                f"this version of the openai SDK cannot be instrumented ({error}): calls are captured at "
                "the gateway only, and none will be verified as exact; install openai >= 1.93, < 4",
                RuntimeWarning,
                stacklevel=3,
            )
            return
        patches = [Patch(client, "request", wrapper) for client, wrapper in clients]
        if hasattr(base.BaseClient, "_build_request"):
            patches.append(Patch(base.BaseClient, "_build_request", _count_retries))
        else:
            COUNTS.add("wire-retries-unknown")
        self._patches = tuple(patches)
        self.available = True

    def _uninstrument(self, **kwargs: Any) -> None:
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = ()
        self.available = False


def _sync(wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    call, args, kwargs = _open(client, args, kwargs)
    if call is None:
        return wrapped(*args, **kwargs)
    token = current_call.set(call)
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        call.end(error)
        raise
    finally:
        current_call.reset(token)
    return _watch(call, result)


async def _async(
    wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call, args, kwargs = _open(client, args, kwargs)
    if call is None:
        return await wrapped(*args, **kwargs)
    token = current_call.set(call)
    try:
        result = await wrapped(*args, **kwargs)
    except BaseException as error:
        call.end(error)
        raise
    finally:
        current_call.reset(token)
    return _watch(call, result)


def _count_retries(
    wrapped: Callable[..., Any], client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if (call := current_call.get()) is not None:
        call.retries = int(kwargs.get("retries_taken", 0))
    return wrapped(*args, **kwargs)


def _open(
    client: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[WireCall | None, tuple[Any, ...], dict[str, Any]]:
    """The call to record (``None``: not ours to record), and the arguments to go on with."""
    try:
        named = "options" in kwargs
        opened = open_call(client, kwargs["options"] if named else args[1])
        if opened is None:
            return None, args, kwargs
        call, options = opened
        if named:
            return call, args, {**kwargs, "options": options}
        return call, (args[0], options, *args[2:]), kwargs
    except Exception:
        COUNTS.add("wire-error")
        _LOG.warning("a model call could not be recorded by the wire layer", exc_info=True)
        return None, args, kwargs


def _watch(call: WireCall, result: Any) -> Any:
    """Read ``result`` without changing it; a stream is read while the user reads it."""
    from openai import AsyncStream, Stream

    try:
        parsed = (
            result.parse() if type(result).__name__ == "LegacyAPIResponse" else result
        )  # the SDK caches it
        if isinstance(parsed, Stream):
            parsed._iterator = Tee(parsed._iterator, call.take, call.end)
        elif isinstance(parsed, AsyncStream):
            parsed._iterator = AsyncTee(parsed._iterator, call.take, call.end)
        elif hasattr(parsed, "choices"):
            call.take_whole(parsed)
            call.end(None)
        else:  # with_streaming_response: the body is the user's to read
            call.unread()
    except (
        Exception
    ) as error:  # a structured output that does not parse is the user's to meet, not ours to raise
        COUNTS.add("wire-not-read")
        call.end(error)
    return result
