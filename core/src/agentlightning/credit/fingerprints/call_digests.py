"""Digests of a call: of all that credit reads of it, and of each of its parts.

Layout 2 takes the ids of a prompt by the digests of what they begin with, and a request by the digests of its
messages and values: where calls share them, each is hashed once, so that a rollout's fingerprint costs what
its tokens do. Layout 1 hashes every prompt and request from the start; runs that were trained before layout 2
are verified by it.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

from agentlightning.credit.fingerprints.chain import canonical
from agentlightning.credit.fingerprints.digest import int_bytes, real_bytes, text_bytes
from agentlightning.types import Call
from agentlightning.types.tokens import as_ids, shared_buffer

LAYOUT = 2
"""Of fingerprints that are made today."""
CALL_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "token ids": ("prompt_ids", "response_ids"),
        "logprobs": ("logprobs",),
        "policy version": ("policy", "policy_version"),
        "tags": ("tags",),
        "sampling": ("sampling", "allowed"),
        "request": ("request", "asked", "model"),
        "response": ("response", "finish_reason", "error"),
        "usage": ("prompt_tokens", "completion_tokens"),
        "times": ("start_time", "end_time"),
    }
)
"""Part of a call → its fields; all others are its ``identity or fate``."""
OTHER_PART = "identity or fate"
_NAMED = frozenset(name for names in CALL_PARTS.values() for name in names)
_FIELDS = {**CALL_PARTS, OTHER_PART: tuple(name for name in Call.__struct_fields__ if name not in _NAMED)}
_ARRAYS = frozenset({"token ids", "logprobs"})


class CallDigests:
    """Digests of the calls of one record."""

    def __init__(self, layout: int = LAYOUT) -> None:
        self._layout = layout
        self._known: dict[int, str] = {}
        """Messages and values of requests, by identity: calls that were read from a store share them."""

    def parts(self, call: Call) -> dict[str, str]:
        """A digest of each part, by which it is said what of the call was changed."""
        return {part: digest_of(self._part(call, part, names)) for part, names in _FIELDS.items()}

    def read(self, call: Call) -> Iterable[bytes]:
        """What credit reads of a call. Texts are not trained on: the ids are."""
        yield text_bytes(call.call_id)
        yield struct.pack("<qqq", call.sequence, call.choice, call.retry)
        if self._layout == 1:
            for ids in (call.prompt_ids, call.response_ids):
                yield b"-" if ids is None else int_bytes(ids)
        else:
            yield from _ids(call)
        yield b"-" if call.logprobs is None else real_bytes(call.logprobs)
        rest = [
            call.policy, call.policy_version, call.selected, call.masked, call.status,
            call.span_id, call.trace_id, call.sampling, call.allowed, call.tags,
            call.prompt_tokens, call.completion_tokens,
            call.api, call.response_id, call.edited.get("over_length"),
        ]  # fmt: skip
        yield text_bytes(json.dumps(rest, sort_keys=True))

    def _part(self, call: Call, part: str, names: Sequence[str]) -> Iterable[bytes]:
        if part == "token ids" and self._layout > 1:
            return _ids(call)
        if part in _ARRAYS:
            return (_array(getattr(call, name)) for name in names)
        values = [getattr(call, name) for name in names]
        if part == "request" and self._layout > 1:
            values[0] = self._request(call.request)
        return [canonical(values)]

    def _request(self, request: Mapping[str, Any] | None) -> Any:
        """A request with digests in place of messages, lists and objects."""
        if request is None:
            return None
        found: dict[str, Any] = {}
        for name, value in request.items():
            if name == "messages" and isinstance(value, list):
                found[name] = [self._value(message) for message in value]
            else:
                found[name] = self._value(value)
        return found

    def _value(self, value: Any) -> Any:
        if not isinstance(value, list | dict):
            return value
        if id(value) not in self._known:
            self._known[id(value)] = digest_of([canonical(value)])
        return self._known[id(value)]


def digest_of(parts: Iterable[bytes]) -> str:
    """32 hex digits of blake2b."""
    state = blake2b(digest_size=16)
    for part in parts:
        state.update(part)
    return state.hexdigest()


def _ids(call: Call) -> Iterable[bytes]:
    """Digests of the prompt, and of prompt + response."""
    if call.prompt_ids is None or call.response_ids is None:
        for ids in (call.prompt_ids, call.response_ids):
            yield b"-" if ids is None else int_bytes(ids)
        return
    data, own, whole = shared_buffer(as_ids(call.prompt_ids), call.response_ids)
    yield struct.pack("<qq", own, whole) + data.digest(own) + data.digest(whole)


def _array(values: Sequence[float] | None) -> bytes:
    """Ids or logprobs as bytes: there are many of them."""
    return b"-" if values is None else array("d", values).tobytes() + b"."
