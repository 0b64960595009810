"""Digests of a call: of the fields that credit reads, and of each part of the call.

The beginning of a prompt, and each message and value of a request, is hashed once for all calls that share
it, so that the cost of a rollout's fingerprint grows with its tokens.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agentlightning.credit.fingerprints.chain import canonical, digest, plain
from agentlightning.credit.fingerprints.digest import digest_of, int_bytes, real_bytes, text_bytes
from agentlightning.types import Call
from agentlightning.types.tokens import as_ids, shared_buffer

CALL_PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "token ids": ("prompt_ids", "response_ids"),
        "logprobs": ("logprobs",),
        "policy version": ("policy", "policy_version", "policy_versions"),
        "tags": ("tags",),
        "sampling": ("sampling", "allowed", "grammar", "logprobs_mode"),
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


class CallDigests:
    """Digests of the calls of one record."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}
        """Messages and values of requests, by identity: calls that were read from a store share them."""

    def parts(self, call: Call) -> dict[str, str]:
        """Return a digest of each part, to tell which part of a call was changed."""
        return {part: digest_of(self._part(call, part)) for part in _FIELDS}

    def read(self, call: Call) -> Iterable[bytes]:
        """Yield the fields that credit reads. Texts are not among them: the ids are trained."""
        yield text_bytes(call.call_id)
        yield struct.pack("<qqq", call.sequence, call.choice, call.retry)
        yield from self._ids(call)
        yield b"-" if call.logprobs is None else real_bytes(call.logprobs)
        rest = [
            call.policy, call.policy_version, call.selected, call.masked, call.status,
            call.span_id, call.trace_id, call.sampling, call.allowed, call.tags,
            call.prompt_tokens, call.completion_tokens,
            call.api, call.response_id, call.edited.get("over_length"),
            call.grammar, call.logprobs_mode, call.policy_versions,
        ]  # fmt: skip
        yield text_bytes(json.dumps(plain(rest), sort_keys=True))

    def _part(self, call: Call, part: str) -> Iterable[bytes]:
        if part == "token ids":
            return self._ids(call)
        values = [getattr(call, name) for name in _FIELDS[part]]
        if part == "logprobs":
            return map(_array, values)
        if part == "request" and call.request is not None:
            values[0] = {name: self._in_request(name, value) for name, value in call.request.items()}
        return [canonical(values)]

    def _in_request(self, name: str, value: Any) -> Any:
        """A value of a request, with digests in place of messages, lists and objects."""
        if name == "messages" and isinstance(value, list):
            return [self._value(message) for message in value]
        return self._value(value)

    def _value(self, value: Any) -> Any:
        if not isinstance(value, list | dict):
            return value
        if id(value) not in self._known:
            self._known[id(value)] = digest(value)
        return self._known[id(value)]

    def _ids(self, call: Call) -> Iterable[bytes]:
        """The ids of prompt and response; digests of the prompt, and of prompt + response."""
        if call.prompt_ids is None or call.response_ids is None:
            for ids in (call.prompt_ids, call.response_ids):
                yield b"-" if ids is None else int_bytes(ids)
        else:
            data, own, whole = shared_buffer(as_ids(call.prompt_ids), call.response_ids)
            yield struct.pack("<qq", own, whole) + data.digest(own) + data.digest(whole)


def _array(values: Sequence[float] | None) -> bytes:
    """Encode ids or logprobs, of which there are many, without JSON."""
    return b"-" if values is None else array("d", values).tobytes() + b"."
