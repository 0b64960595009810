"""The wire layer: every model call of an SDK becomes a span with the engine's own token ids.

One private method of the SDK carries all its calls (``create``, ``parse``, ``stream``, raw responses; sync
and async; openai 1.93 to 3, and anthropic, which is made by the same generator), so one patch sees them all.
Towards the gateway it also says who is calling.
Invariant: the attempt's key goes to the attempt's gateway and nowhere else; other endpoints see the request
unchanged.

If the SDK has lost that method, :meth:`OpenAIInstrumentor.instrument` warns and capture goes on at the
gateway only.
"""

from __future__ import annotations

import logging
import warnings
import weakref
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from agentlightning.capture.counts import COUNTS
from agentlightning.capture.instrument.patching import Patch
from agentlightning.capture.sdk.call import CURRENT_CALL, SDKCall, open_call, sending
from agentlightning.capture.sdk.response import AsyncStreamTee, StreamTee, is_answer
from agentlightning.types.select import BadSelect

_LOG = logging.getLogger(__name__)


class OpenAIInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Instruments the openai SDK. ``available``: the installed version could be patched."""

    available = False
    _patches: tuple[Patch, ...] = ()

    def instrumentation_dependencies(self) -> Collection[str]:
        """The tested range."""
        return ("openai >= 1.93, < 4",)

    def _instrument(self, **kwargs: Any) -> None:
        self._patches = patch_sdk("openai", "openai >= 1.93, < 4")
        self.available = bool(self._patches)

    def _uninstrument(self, **kwargs: Any) -> None:
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = ()
        self.available = False


def patch_sdk(sdk: str, tested: str) -> tuple[Patch, ...]:
    """Patch the methods that carry an SDK's calls. An SDK without them is left alone, with a warning."""
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
        return ()
    patches = [Patch(client, "request", partial(wrapper, sdk)) for client, wrapper in clients]
    if hasattr(base.BaseClient, "_build_request"):
        patches.append(Patch(base.BaseClient, "_build_request", _count_retries))
    else:
        COUNTS.add("wire-retries-unknown")
    return tuple(patches)


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
    """The call to record, or ``None``, and the arguments to pass on."""
    try:
        named = "options" in kwargs
        opened = open_call(sdk, client, kwargs["options"] if named else args[1])
        if opened is None:
            return None, args, kwargs
        call, options = opened
        if named:
            return call, args, {**kwargs, "options": options}
        return call, (args[0], options, *args[2:]), kwargs
    except BadSelect:  # a select that fails: to train the call without it would be a decision
        raise
    except Exception:
        COUNTS.add("wire-error")
        _LOG.warning("a model call could not be recorded by the wire layer", exc_info=True)
        return None, args, kwargs


def _observe(call: SDKCall, result: Any) -> Any:
    """Record ``result`` without changing it; a stream while the user reads it."""
    try:
        kind = type(result).__name__
        if kind in ("APIResponse", "AsyncAPIResponse"):
            _observe_parsing(call, result)
        else:
            _observe_parsed(
                call, result.parse() if kind == "LegacyAPIResponse" else result
            )  # the SDK caches it
    except (
        Exception
    ) as error:  # a structured output that does not parse is the user's to meet, not ours to raise
        COUNTS.add("wire-not-read")
        call.end(error)
    return result


def _observe_parsing(call: SDKCall, raw: Any) -> None:
    """A raw response: record it when the user parses the body; if that never happens, count it as unread."""
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
    if isinstance(parsed, sdk.Stream):
        parsed._iterator = StreamTee(parsed._iterator, call.add_chunk, call.end)
    elif isinstance(parsed, sdk.AsyncStream):
        parsed._iterator = AsyncStreamTee(parsed._iterator, call.add_chunk, call.end)
    elif is_answer(parsed):
        call.add_whole(parsed)
        call.end(None)
    else:  # the body is the user's to read
        call.end_unread()
