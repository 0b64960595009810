"""What translated APIs share: an answer from the engine's chat answer, and the arguments of tool calls.

Invariant: arguments that an agent sends back are, byte for byte, those that the model wrote.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agentlightning.gateway.apis import WRONG_SHAPE, ApiFormat
from agentlightning.gateway.attempts import OpenAttempt
from agentlightning.gateway.errors import BadAnswer, store_failed
from agentlightning.types import Call

log = logging.getLogger(__name__)
ToolArguments = Mapping[str, Sequence[str]]
"""Tool call id → arguments exactly as the model wrote them, the latest first; an id may occur twice."""
TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "token_logprobs", "policy_version")
"""Top-level fields of a translated answer with the sampled tokens; SDKs keep fields they do not know."""


class TranslatedApi(ApiFormat):
    """An API that engines do not speak."""

    def id_of(self, engine_id: str | None, own: str) -> str:
        """The engine's id, if it gave one."""
        return engine_id or own

    @abstractmethod
    def chat_body(self, body: dict[str, Any]) -> dict[str, Any]:
        """The engine's request body for a request that refers to nothing earlier. Raise
        :class:`RequestRefused` 400 with the part that is not served.
        """

    @abstractmethod
    def answer(self, body: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
        """This API's answer from a whole chat answer, which was checked and has an id."""

    @abstractmethod
    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """The events of a stream from a whole answer of this API."""

    def render(self, body: Mapping[str, Any], raw: bytes, answer_id: str, stream: bool) -> bytes:
        """Translate the engine's chat answer."""
        chat: dict[str, Any] = msgspec.json.decode(raw)
        chat["id"] = self.id_of(chat.get("id"), answer_id)
        _check_message(chat["choices"][0]["message"])
        try:
            answer = self.answer(body, chat)
        except WRONG_SHAPE as error:
            raise BadAnswer(f"the engine's answer does not fit the {self.name} API: {error!r}") from None
        return b"".join(self.events(answer)) if stream else msgspec.json.encode(answer)

    def remember(self, attempt: OpenAttempt, call: Call, chat: Mapping[str, Any]) -> None:
        """Keep the arguments of the answer's tool calls."""
        attempt.part(WrittenArguments).add(call)


class WrittenArguments:
    """The arguments of the tool calls in an attempt's translated answers."""

    def __init__(self, attempt: OpenAttempt) -> None:
        self._attempt = attempt
        self._known: dict[str, list[str]] = {}
        self._earlier: asyncio.Task[None] | None = None
        """Reads those that another gateway, or an earlier life of this one, has recorded."""
        self._began = attempt.sequence

    def add(self, call: Call) -> None:
        """Keep those of a recorded answer."""
        for call_id, written in _arguments(call):
            known = self._known.setdefault(call_id, [])
            if written not in known:
                known.insert(0, written)

    async def by_id(self) -> ToolArguments:
        """Those that are known. Raise :class:`RequestRefused` 503 if the store cannot be read."""
        if self._began:
            self._earlier = self._earlier or asyncio.create_task(self._read())
            try:
                await asyncio.shield(self._earlier)
            except Exception as error:
                self._earlier = None
                log.exception("attempt %s: its earlier answers cannot be read", self._attempt.info.attempt_id)
                raise store_failed("the store could not be asked about earlier answers", error) from None
        return self._known

    async def _read(self) -> None:
        info = self._attempt.info
        for call in reversed(await self._attempt.store.query_calls(info.rollout_id, info.attempt_id)):
            for call_id, written in _arguments(call):
                known = self._known.setdefault(call_id, [])
                if written not in known:
                    known.append(written)


def _arguments(call: Call) -> Iterator[tuple[str, str]]:
    """Id and arguments of each tool call in a translated answer."""
    if "api" in call.edited and call.response:
        answer_id = call.response_id or f"{call.attempt_id}-{call.sequence}"
        for place, tool in enumerate(call.response.get("tool_calls") or ()):
            yield call_id(tool, answer_id, place), tool["function"].get("arguments") or ""


def typed_event(event: Mapping[str, Any]) -> bytes:
    """One event of a translated API: named by its type."""
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def tokens(chat: Mapping[str, Any]) -> dict[str, Any]:
    """The sampled tokens of a chat answer, as top-level fields of a translated one."""
    choice = chat["choices"][0]
    content = (choice.get("logprobs") or {}).get("content")
    found = {
        "prompt_token_ids": chat.get("prompt_token_ids"),
        "token_ids": choice.get("token_ids"),
        "token_logprobs": None if content is None else [entry["logprob"] for entry in content],
        "policy_version": chat.get("policy_version"),
    }
    return {name: value for name, value in found.items() if value is not None}


def call_id(call: Mapping[str, Any], answer_id: str, index: int) -> str:
    """Id of a tool call of an answer: the engine's, if it gave one."""
    return str(call.get("id") or f"call_{answer_id}_{index}")


def _check_message(message: Mapping[str, Any]) -> None:
    """Raise :class:`BadAnswer` for an engine's message that a translated API cannot read."""
    for name in ("content", "refusal"):
        _expect(message.get(name), str | None, name)
    _expect(calls := message.get("tool_calls"), list | None, "tool_calls")
    for index, call in enumerate(calls or ()):
        path = f"tool_calls[{index}]"
        _expect(call, dict, path)
        _expect(called := call.get("function"), dict, f"{path}.function")
        _expect(called.get("name"), str, f"{path}.function.name")
        _expect(called.get("arguments"), str | None, f"{path}.function.arguments")


def _expect(value: Any, kind: Any, path: str) -> None:
    if not isinstance(value, kind):
        raise BadAnswer(f"{path} of the engine's message is of type {type(value).__name__}")


def reasoning_of(message: Mapping[str, Any]) -> str:
    """The reasoning of a chat message that the gateway or the engine has split off."""
    thoughts = (message.get(name) for name in ("reasoning_content", "reasoning"))
    return next((thought for thought in thoughts if isinstance(thought, str)), "")
