"""The answers and conversations of one attempt that its later requests may refer to.

Both are read from the attempt's record: an answer is a recorded call, a conversation is the calls that were
made in it and the changes that the agent asked for beside them (:class:`Change`, kept as spans). The
most recent are held in memory, :data:`BUDGET` bytes of an attempt. Invariants: what is not held is read from
the store again, so a restart of the gateway changes no answer; an attempt finds its own and no other's.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated, Any, Final, Literal

import msgspec

from agentlightning.gateway.apis import WRONG_SHAPE, Message
from agentlightning.gateway.attempts import OpenAttempt
from agentlightning.gateway.errors import RequestRefused, store_failed
from agentlightning.gateway.media import media_parts, recorded
from agentlightning.store.base import AttemptEnded
from agentlightning.store.pages import pages
from agentlightning.types import Call, Span
from agl_gateway.apis.items import ANSWER, CONVERSATION, NAME, answer_items, items_of, turn_of

log = logging.getLogger(__name__)
CONVERSATION_SPAN: Final = "agentlightning.conversation"
"""Name of the span of a change of a conversation."""
CONVERSATION_CHANGE: Final = "agl.conversation.change"
"""Its attribute with the change, in JSON."""
BUDGET = 4 * 2**20
"""Bytes of JSON that an attempt's history holds; the latest entry is held whatever its size."""
_OF_ANSWER = re.compile(r"(?:msg|rs|fc)_(.+?-[0-9]+)(?:_[0-9]+)?")
"""The id of an item of an answer, and in it the name of the answer."""


class References(msgspec.Struct, frozen=True):
    """The ids by which a request refers to earlier calls of its attempt."""

    answer: str | None = None
    """The answer whose conversation it continues."""
    conversation: str | None = None
    """The conversation that it continues, and that its answer is added to."""
    items: list[str] = []
    """Items of earlier answers that it names in place of sending them."""


class Earlier(msgspec.Struct, frozen=True):
    """The parts of an attempt's earlier calls that a request refers to."""

    messages: list[Message] | None = None
    """The conversation that the request continues; ``None``: none is known."""
    items: Mapping[str, Mapping[str, Any]] = {}
    """The items that it names, by id."""


NOTHING: Final = Earlier()


class KeptAnswer(msgspec.Struct, frozen=True):
    """One answered call."""

    answer_id: str
    messages: list[Message]
    """The conversation before the answer, without the request's own instructions."""
    message: Message
    """The answer, in the engine's words."""

    @property
    def whole(self) -> list[Message]:
        """The conversation that a request goes on from."""
        return [*self.messages, *turn_of(self.message, self.answer_id)]


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change that an agent asked for outside of a call."""

    kind: Literal["create", "append", "replace", "update", "delete"]
    of: str
    """The conversation or answer."""
    messages: list[Message] = []
    """Those that are added, or put in the place of message ``index``."""
    index: Annotated[int, msgspec.Meta(ge=0)] = 0
    metadata: dict[str, Any] = {}
    after: int = -1
    """Sequence of the last call of the conversation before the change."""
    time: int = 0


class Conversation:
    """Messages that calls and changes have added. A message that was deleted leaves an empty place."""

    def __init__(self, conversation_id: str) -> None:
        self.conversation_id = conversation_id
        self.created_at = 0
        self.metadata: dict[str, Any] = {}
        self.places: list[Message | None] = []
        self.after = -1
        """Sequence of the last call."""
        self.exists = False

    @property
    def messages(self) -> list[Message]:
        """The messages that are left."""
        return [message for message in self.places if message is not None]

    def apply(self, change: Change) -> None:
        """Make a change."""
        if change.kind == "create":
            self.exists, self.created_at = True, change.time
        if change.kind in ("create", "update"):
            self.metadata = change.metadata
        if change.kind in ("create", "append"):
            self.places += change.messages
        elif change.kind == "replace" and change.index < len(self.places):
            self.places[change.index] = next(iter(change.messages), None)
        elif change.kind == "delete":
            self.exists = False

    def add_answer(self, answer: KeptAnswer, sequence: int) -> None:
        """Add the input and the answer of a call."""
        self.places += answer.whole[len(self.messages) :]
        self.after = sequence


class History:
    """Finds what an attempt's requests refer to, and keeps what they may refer to later."""

    def __init__(self, attempt: OpenAttempt) -> None:
        info, self._store = attempt.info, attempt.store
        self._rollout, self._attempt = info.rollout_id, info.attempt_id
        self._kept: OrderedDict[str, tuple[KeptAnswer | Conversation, int]] = OrderedDict()
        """By id, the least recently used first, each with its size."""
        self._bytes = 0
        self._busy: set[str] = set()
        """Conversations in which a call is under way."""

    # ------------------------------------------------------------------------------------------- requests
    async def earlier(self, names: References) -> Earlier:
        """The earlier calls that a request refers to. Raise :class:`RequestRefused` 404 for what is not this
        attempt's.
        """
        messages: list[Message] | None = None
        if names.answer is not None:
            messages = (await self.answer(names.answer)).whole
        elif names.conversation is not None:
            messages = (await self.conversation(names.conversation)).messages
        if messages and is_recorded_only(messages):
            message = (
                f"{names.answer or names.conversation} has an image whose content the gateway no longer has "
                "(it restarted, or dropped it for newer answers); send the whole conversation as input"
            )
            raise RequestRefused(400, "media-not-kept", message)
        return Earlier(messages, await self._items(names.items))

    def alone(self, conversation_id: str | None) -> AbstractContextManager[None]:
        """Keep other calls out of a conversation: each adds to what the one before it has left."""
        return nullcontext() if conversation_id is None else self._alone(conversation_id)

    @contextmanager
    def _alone(self, conversation_id: str) -> Iterator[None]:
        if conversation_id in self._busy:
            message = (
                "Another process is currently operating on this conversation. Wait for its answer, or give "
                "each strand of calls a conversation of its own."
            )
            raise RequestRefused(400, "conversation_locked", message)
        self._busy.add(conversation_id)
        try:
            yield
        finally:
            self._busy.discard(conversation_id)

    def remember(self, call: Call, request: Mapping[str, Any]) -> None:
        """Keep a recorded call. ``request``: the chat request as it came."""
        if not _answered(call):
            return
        answer = _answer_of(call, request)
        if call.edited.get("stored", True):
            self._keep(answer.answer_id, answer, len(msgspec.json.encode(answer)))
        held = self._kept.get(call.edited.get("continues", ""))
        if held is not None and isinstance(conversation := held[0], Conversation):
            if call.sequence > conversation.after:
                conversation.add_answer(answer, call.sequence)
            self._keep_conversation(conversation)

    # ---------------------------------------------------------------------------------- answers, by their ids
    async def answer(self, answer_id: str) -> KeptAnswer:
        """The answer of an id, or :class:`RequestRefused` 404."""
        held = self._kept.get(answer_id)
        if held is not None and isinstance(held[0], KeptAnswer):
            self._kept.move_to_end(answer_id)
            return held[0]
        call = await self.call(answer_id)
        return _answer_of(call, call.request or {})

    async def call(self, answer_id: str) -> Call:
        """The record of an answer, or :class:`RequestRefused` 404."""
        if answer_id.startswith(f"{ANSWER}{self._attempt}-"):
            found = next(
                (c for c in await self._calls() if c.response_id == answer_id and _answered(c)), None
            )
            deleted = any(change.kind == "delete" for change in await self._changes(answer_id))
            if found is not None and found.edited.get("stored", True) and not deleted:
                return found
        raise not_found(answer_id)

    async def delete_answer(self, answer_id: str) -> None:
        """Forget an answer; its record stays, and so does what has gone on from it."""
        await self.call(answer_id)
        await self._write(Change("delete", answer_id))
        self._drop(answer_id)

    async def _items(self, names: list[str]) -> dict[str, dict[str, Any]]:
        """The items of answers with these ids; an unknown id is left out."""
        found: dict[str, dict[str, Any]] = {}
        for name in names:
            if name in found or (match := _OF_ANSWER.fullmatch(name)) is None:
                continue
            try:
                answer = await self.answer(f"{ANSWER}{match[1]}")
            except RequestRefused as refused:
                if refused.status != 404:
                    raise
                continue
            found |= {item["id"]: item for item in answer_items(answer.message, answer.answer_id)}
        return found

    # ------------------------------------------------------------------------------------------ conversations
    async def create(self, messages: list[Message], metadata: dict[str, Any]) -> Conversation:
        """A new conversation."""
        conversation = Conversation(f"{CONVERSATION}{self._attempt}-{secrets.token_hex(8)}")
        change = Change(
            "create", conversation.conversation_id, messages, metadata=metadata, time=int(time.time())
        )
        return await self.change(conversation, change)

    async def conversation(self, conversation_id: str) -> Conversation:
        """The conversation of an id, or :class:`RequestRefused` 404."""
        held = self._kept.get(conversation_id)
        if held is not None and isinstance(held[0], Conversation):
            self._kept.move_to_end(conversation_id)
            return held[0]
        found = Conversation(conversation_id)
        if conversation_id.startswith(f"{CONVERSATION}{self._attempt}-"):
            changes, calls = await self._changes(conversation_id), await self._calls()
            _rebuild(found, changes, (c for c in calls if c.edited.get("continues") == conversation_id))
        if not found.exists:
            raise not_found(conversation_id)
        self._keep_conversation(found)
        return found

    async def change(self, conversation: Conversation, change: Change) -> Conversation:
        """Make a change, durable on return. It is refused while a call is under way in the conversation."""
        with self.alone(conversation.conversation_id):
            kept = recorded(change.messages) or change.messages
            await self._write(msgspec.structs.replace(change, after=conversation.after, messages=kept))
            conversation.apply(change)
        if conversation.exists:
            self._keep_conversation(conversation)
        else:
            self._drop(conversation.conversation_id)
        return conversation

    # ------------------------------------------------------------------------------------------------- store
    async def _calls(self) -> list[Call]:
        try:
            return await self._store.query_calls(self._rollout, self._attempt)
        except Exception as error:
            raise self._failed(error) from None

    async def _changes(self, name: str) -> list[Change]:
        """The changes of a conversation or answer, in their order."""
        of_attempt = (self._rollout, self._attempt)
        changes: list[Change | None] = []
        try:
            async for page in pages(self._store.spans, *of_attempt, name=CONVERSATION_SPAN):
                changes += map(_change_of, page)
        except Exception as error:
            raise self._failed(error) from None
        return [change for change in changes if change is not None and change.of == name]

    async def _write(self, change: Change) -> None:
        span = Span(
            rollout_id=self._rollout,
            attempt_id=self._attempt,
            name=CONVERSATION_SPAN,
            attributes={CONVERSATION_CHANGE: msgspec.json.encode(change).decode()},
            start_time=(now := time.time()),
            end_time=now,
        )
        try:
            await self._store.add_many_spans([span])
        except AttemptEnded as error:
            raise RequestRefused(409, "attempt-ended", str(error)) from None
        except Exception as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> RequestRefused:
        log.exception("attempt %s: the store failed on its answers and conversations", self._attempt)
        return store_failed("the store failed on this attempt's answers and conversations", error)

    # ------------------------------------------------------------------------------------------------ memory
    def _keep_conversation(self, conversation: Conversation) -> None:
        self._keep(conversation.conversation_id, conversation, len(msgspec.json.encode(conversation.places)))

    def _keep(self, name: str, value: KeptAnswer | Conversation, size: int) -> None:
        self._drop(name)
        self._kept[name] = value, size
        self._bytes += size
        while self._bytes > BUDGET and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def _drop(self, name: str) -> None:
        if (held := self._kept.pop(name, None)) is not None:
            self._bytes -= held[1]


def not_found(name: str) -> RequestRefused:
    """The refusal of a request that continues an answer or a conversation which is not the attempt's."""
    kept = "kept are those of this attempt that were not deleted"
    if name.startswith(CONVERSATION):
        return RequestRefused(
            404, "conversation_not_found", f"Conversation with id '{name}' not found; {kept}."
        )
    message = f"Previous response with id '{name}' not found; {kept} or asked with store=false."
    return RequestRefused(404, "previous_response_not_found", message)


def _answered(call: Call) -> bool:
    """Whether a record is of an answer of the Responses API; others have no id to refer to."""
    return (
        call.edited.get("api") == NAME
        and call.status == "ok"
        and call.choice == 0
        and call.response is not None
        and call.response_id is not None
    )


def _answer_of(call: Call, request: Mapping[str, Any]) -> KeptAnswer:
    own = 1 if call.edited.get("instructions") else 0
    return KeptAnswer(call.response_id or "", request["messages"][own:], call.response or {})


def _rebuild(conversation: Conversation, changes: Iterable[Change], calls: Iterable[Call]) -> None:
    """Put a conversation together from its changes and calls, each in its order."""
    left = [call for call in calls if _answered(call)]
    for change in [*changes, None]:
        while left and (change is None or left[0].sequence <= change.after):
            call = left.pop(0)
            conversation.add_answer(_answer_of(call, call.request or {}), call.sequence)
        if change is not None:
            conversation.apply(change)


def _change_of(span: Span) -> Change | None:
    """The change of a span; ``None`` if it is not ours: an agent may export spans of any name."""
    try:
        change = msgspec.json.decode(str(span.attributes.get(CONVERSATION_CHANGE)), type=Change)
        for index, message in enumerate(change.messages):
            list(items_of(message, str(index)))
    except (msgspec.DecodeError, *WRONG_SHAPE) as error:
        log.warning("a span %s of attempt %s is not ours: %r", span.name, span.attempt_id, error)
        return None
    return change


def is_recorded_only(messages: Sequence[Message]) -> bool:
    """Whether a part of the messages is known by its hash alone."""
    parts = (part for message in messages for part in media_parts(message))
    return any("sha256" in value for part in parts for value in _objects(part))


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """The JSON objects in a value, itself included."""
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from _objects(item)
