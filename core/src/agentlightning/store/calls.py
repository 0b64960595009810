"""Calls as deltas: a call is stored as its parent and the parts that the parent does not have.

An agent sends its whole history with every call, and the engine answers with all of its token ids: stored as
they come, the calls of a rollout grow with the square of its turns. So a call keeps only the parts that no
earlier call of its attempt holds:

* **token ids**: the longest earlier prompt, or prompt + response, that its prompt begins with, and the ids
  that follow;
* **messages**: the earlier request, with its answer as the last message, that its messages begin with, and
  the messages that follow; in the completions API the text of the prompt, likewise;
* **other values of the request** (tools, a schema): the earlier call whose request holds the same value.

:class:`CallIndex` finds them when a call is written, by digests; :func:`whole_calls` undoes it.

Invariant: ``whole_calls`` returns requests and ids byte for byte as they were recorded. What matches nothing
is stored whole. A call builds on calls that were stored before it, never on later ones.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from agentlightning.store import codec
from agentlightning.store.base import StoreError
from agentlightning.store.codec import CallBody
from agentlightning.types import Call, Record
from agentlightning.types.tokens import WIDTH, PrefixDigests, TokenIds, shared_buffer

_TAIL = 32
"""Bytes at the end of a known prefix that must match before anything is hashed."""
_TRIES = 8
"""How many known prefixes are hashed, the longest first, before a call is stored whole."""
_MOST = 4096
"""Known prefixes, or values of requests, of an attempt: beyond, all but the last are forgotten."""
_ENTRY_BYTES = 512
"""Memory of a known prefix, about."""
_OWN_IDS = ""
"""In place of a call id: the value is the list of the prompt's token ids."""
_LARGE = 64
"""Values of a request of at least so many bytes are stored once for all calls."""
_encoder = msgspec.msgpack.Encoder()
_encode = _encoder.encode
_NOT_PACKABLE = (OverflowError, UnicodeEncodeError, TypeError, ValueError)
"""Raised for values that MessagePack cannot hold (big integers, lone surrogates): they are stored whole."""


# ------------------------------------------------------------------------------------------------ to the file
class _Prefix(NamedTuple):
    """A prefix of a stored call."""

    call_id: str
    shared: int
    """Its length in ids, messages or characters."""


class _Prefixes:
    """Prefixes that stored calls hold, by length in bytes and digest."""

    __slots__ = ("_items", "_known", "_lengths", "_scratch", "recent")

    def __init__(self) -> None:
        self.recent = PrefixDigests()
        """The last addition; most often the next call begins with it."""
        self._lengths: list[int] = []
        self._scratch = bytearray()
        self._items = 0
        """Messages of the last call, with its answer."""
        self._known: dict[tuple[int, bytes], tuple[bytes, _Prefix]] = {}

    def expect(self, data: PrefixDigests) -> None:
        """Announce bytes to look up and to add, so that only their new end is hashed."""
        if data is not self.recent:
            data.hash_from(self.recent)
            self.recent = data

    def joined(self, asked: list[Any] | str, answer: list[Any] | str) -> tuple[int, PrefixDigests]:
        """Return the number of bytes of ``asked``, and a buffer of ``asked`` and ``answer``.

        If ``asked`` begins with all messages of the last call, new messages extend that call's buffer: known
        messages are compared one by one, and neither joined nor hashed again.
        """
        last, at, known = self.recent.data, 0, 0
        if len(asked) >= self._items and isinstance(asked, list) and isinstance(last, bytearray):
            while at < len(last) and known < len(asked):
                _encoder.encode_into(asked[known], self._scratch)
                if not last.startswith(self._scratch, at):
                    break
                at, known = at + len(self._scratch), known + 1
        if at < len(last):
            at, known = 0, 0
        self._items = len(asked) + len(answer)
        parts, more = _bytes(asked[known:]), _bytes(answer)
        own, new = at + sum(map(len, parts)), b"".join(parts + more)
        if at:
            last += new
        else:
            self.expect(PrefixDigests(bytearray(new)))
        return own, self.recent

    def longest(self, data: PrefixDigests, length: int) -> _Prefix | None:
        """Return the longest known prefix of the first ``length`` bytes of ``data``."""
        tries = 0
        for n in reversed(self._lengths[: bisect_right(self._lengths, length)]):
            known = self._known.get((n, data.tail(n, _TAIL)))
            if known is None:
                continue
            if data.digest(n) == known[0]:
                return known[1]
            tries += 1
            if tries == _TRIES:
                break
        return None

    def add(self, data: PrefixDigests, length: int, found: _Prefix) -> None:
        """Make the first ``length`` bytes known. Of equal prefixes the first one stays."""
        if not length:
            return
        if len(self._known) >= _MOST:
            self._known.clear()
            self._lengths.clear()
        place, digest = (length, data.tail(length, _TAIL)), data.digest(length)
        at = bisect_right(self._lengths, length)
        if not at or self._lengths[at - 1] != length:
            insort(self._lengths, length)
        if place not in self._known or self._known[place][0] != digest:
            self._known[place] = digest, found

    @property
    def size(self) -> int:
        """Bytes, about."""
        return _ENTRY_BYTES * len(self._known) + len(self.recent.data)


class CallIndex:
    """Digests of the stored calls of one attempt, about 2 kB a call, and the last call itself. Of an attempt
    with thousands of calls it knows the later ones: a call that goes on from a forgotten one is stored whole.
    """

    __slots__ = ("_chats", "_ids", "_texts", "_values")

    def __init__(self) -> None:
        self._ids, self._chats, self._texts = _Prefixes(), _Prefixes(), _Prefixes()
        self._values: dict[tuple[str, bytes], str] = {}

    @property
    def size(self) -> int:
        """Bytes, about."""
        known = self._ids.size + self._chats.size + self._texts.size
        return known + _ENTRY_BYTES * len(self._values)

    def delta(self, call: Call) -> CallBody:
        """Return the new parts of a call, and add the call to the index."""
        body = codec.call_body(call, prompt=False)
        if call.prompt_ids is not None:
            self._add_ids(call, call.prompt_ids, body)
        if call.request is not None:
            body.request = dict(call.request)
            self._add_values(call, body, body.request)
            self._add_messages(call, body, body.request)
        return body

    def _add_ids(self, call: Call, prompt: TokenIds, body: CallBody) -> None:
        data, own, whole = shared_buffer(prompt, call.response_ids or ())
        self._ids.expect(data)
        shared = 0
        if found := self._ids.longest(data, own):
            body.ids_parent, body.ids_shared = found
            shared = found.shared * WIDTH
        body.prompt_ids = bytes(data.data[shared:own])
        self._ids.add(data, own, _Prefix(call.call_id, own // WIDTH))
        self._ids.add(data, whole, _Prefix(call.call_id, whole // WIDTH))

    def _add_messages(self, call: Call, body: CallBody, request: dict[str, Any]) -> None:
        name, asked, answer = _conversation(request, call.response)
        if not name:
            return
        known = self._chats if name == "messages" else self._texts
        try:
            own, data = known.joined(asked, answer)
        except _NOT_PACKABLE:
            return
        if found := known.longest(data, own):
            body.messages_parent, body.messages_shared = found
            request[name] = asked[found.shared :]
        known.add(data, own, _Prefix(call.call_id, len(asked)))
        known.add(data, len(data.data), _Prefix(call.call_id, len(asked) + len(answer)))

    def _add_values(self, call: Call, body: CallBody, request: dict[str, Any]) -> None:
        for name, value in request.items():
            if not isinstance(value, list | dict) or name == "messages":
                continue
            if name == "prompt" and call.prompt_ids is not None and call.prompt_ids == value:
                held = _OWN_IDS
            elif (packed := _packed(value)) is None or len(packed) < _LARGE:
                continue
            else:
                if len(self._values) >= _MOST:
                    self._values.clear()
                digest = blake2b(packed, digest_size=16).digest()
                held = self._values.setdefault((name, digest), call.call_id)
            if held != call.call_id:
                body.same_values = {**body.same_values, name: held}
                request[name] = None


def _conversation(request: dict[str, Any], response: dict[str, Any] | None) -> tuple[str, Any, Any]:
    """The value of a request that grows with each call: its key (``""``: none), its items, and the answer as
    a further item.
    """
    messages, text = request.get("messages"), request.get("prompt")
    if isinstance(messages, list):
        return "messages", messages, [] if response is None else [response]
    if isinstance(text, str):
        answer = (response or {}).get("text")
        return "prompt", text, answer if isinstance(answer, str) else ""
    return "", None, None


def _bytes(part: list[Any] | str) -> list[bytes]:
    """Messages in MessagePack (each marks its own end), or text in UTF-8."""
    return [part.encode()] if isinstance(part, str) else list(map(_encode, part))


def _packed(value: Any) -> bytes | None:
    try:
        return _encode(value)
    except _NOT_PACKABLE:
        return None


# ---------------------------------------------------------------------------------------------- from the file
CALL_FIELDS = (
    *("call_id", "rollout_id", "attempt_id", "sequence", "choice"),
    *("policy", "policy_version", "status"),
)
"""Fields of a call that are columns."""
columns_of = attrgetter(*CALL_FIELDS)
"""Their values."""


class StoredCall(NamedTuple):
    """A call as the store keeps it."""

    columns: dict[str, Any]
    body: CallBody


_Ids = tuple[TokenIds, TokenIds]
"""Prompt and response of a call."""


def whole_calls(stored: Iterable[StoredCall]) -> list[Call]:
    """Return calls as they were recorded, in the given order. Each must come after the calls it builds on.

    Calls that continue each other share one buffer of token ids and the messages of their requests.
    """
    ids: dict[str, _Ids] = {}
    calls: dict[str, tuple[Call, CallBody]] = {}
    for columns, body in stored:
        call = codec.call_from_body(body, **columns)
        if body.prompt_ids is not None:
            parent = None if body.ids_parent is None else _parent(ids, body.ids_parent, call)
            call.prompt_ids, response = ids[call.call_id] = _whole_ids(parent, body)
            call.response_ids = None if body.response_ids is None else response
        calls[call.call_id] = call, body
        if call.request is not None:
            call.request = _whole_request(call, call.request, body, calls)
    return [call for call, _ in calls.values()]


class StoredRecord(msgspec.Struct):
    """A record with its calls in their stored form, which is also the form on the wire."""

    record: Record
    calls: list[StoredCall]

    def whole(self) -> Record:
        """Return the record with its calls, sorted by request and choice."""
        calls = sorted(whole_calls(self.calls), key=lambda call: (call.sequence, call.choice))
        return msgspec.structs.replace(self.record, calls=calls)


def parents(body: CallBody) -> set[str]:
    """Return the ids of the calls that a stored call builds on."""
    return {i for i in (body.ids_parent, body.messages_parent, *body.same_values.values()) if i}


Known = TypeVar("Known")


def _parent(known: Mapping[str, Known], call_id: str, call: Call) -> Known:
    if call_id not in known:
        raise StoreError(
            f"call {call.call_id} of rollout {call.rollout_id} builds on call {call_id}, which is not in the "
            "store: it was deleted, or the file is damaged"
        )
    return known[call_id]


def _whole_ids(parent: _Ids | None, body: CallBody) -> _Ids:
    new, answer = body.prompt_ids or b"", body.response_ids or b""
    if parent is not None and not new and body.ids_shared <= len(parent[0]):
        # It is the parent's prompt, or the beginning of it.
        return parent[0][: body.ids_shared], TokenIds.unpacked(answer)
    shared = body.ids_shared * WIDTH
    buffer = PrefixDigests() if parent is None else shared_buffer(*parent)[0]
    if len(buffer.data) > shared:  # another call continues it
        buffer = PrefixDigests(buffer.data[:shared])
    buffer.data += new + answer
    own, whole = (shared + len(new)) // WIDTH, len(buffer.data) // WIDTH
    return TokenIds.of(buffer, 0, own), TokenIds.of(buffer, own, whole)


def _whole_request(
    call: Call, request: dict[str, Any], body: CallBody, calls: Mapping[str, tuple[Call, CallBody]]
) -> dict[str, Any]:
    request = dict(request)
    for name, holder in body.same_values.items():
        if holder == _OWN_IDS:
            request[name] = call.prompt_ids.tolist() if call.prompt_ids is not None else None
        else:
            request[name] = (_parent(calls, holder, call)[0].request or {})[name]
    if body.messages_parent is not None:
        parent, _ = _parent(calls, body.messages_parent, call)
        name, asked, answer = _conversation(parent.request or {}, parent.response)
        request[name] = (asked + answer)[: body.messages_shared] + request[name]
    return request
