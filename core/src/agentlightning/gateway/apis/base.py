"""The interface of an API that agents speak, and the parts that translated APIs share.

Engines are asked in chat completions or completions. Any other API is translated: a request to a chat body, a
whole chat answer to the API's own answer and events. A format holds no state and does no I/O. Invariant: ids,
records, sampling and refusals of a translated call are those of the chat call; a request that chat
completions cannot express is refused with the reason, and no field is dropped silently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agentlightning.gateway.apis.sse import KEEP_ALIVE, data_event
from agentlightning.gateway.errors import BadAnswer

EngineApi = Literal["chat", "completions"]
ToolArguments = Mapping[str, Sequence[str]]
"""Tool call id → arguments exactly as the model wrote them, the latest first; an id may occur twice."""
Message = dict[str, Any]
TOKEN_FIELDS = ("prompt_token_ids", "token_ids", "token_logprobs", "policy_version")
"""Top-level fields of a translated answer with the sampled tokens; SDKs keep fields they do not know."""
WRONG_SHAPE = (AttributeError, KeyError, TypeError)
"""Raised by rendering an answer of another shape than the API's."""


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

    arguments: ToolArguments = {}
    messages: list[Message] | None = None
    """The conversation that the request continues; ``None``: none is known."""
    items: Mapping[str, Mapping[str, Any]] = {}
    """The items that it names, by id."""


class ApiFormat(ABC):
    """An API as the gateway serves it. By default it sends requests and errors in the engine's own shape."""

    name: str
    """The name in metrics and, of a translated API, in ``Call.edited["api"]``."""
    engine_api: EngineApi = "chat"
    """The API that the engine is asked in (``Call.api``)."""
    translated = True
    """Whether answers are rewritten; streams of other APIs may pass through."""
    keep_alive = KEEP_ALIVE
    """Sent in a stream while its engine is silent."""

    def chat_body(self, body: dict[str, Any], earlier: Earlier) -> dict[str, Any]:
        """The engine's request body for ``body``. Raise :class:`RequestRefused` 400 with the part that is not
        served.
        """
        return body

    def references(self, body: Mapping[str, Any]) -> References:
        """What a request refers to."""
        return References()

    def id_of(self, engine_id: str | None, own: str) -> str | None:
        """The id of an answer; ``own``: one that is unique in the run."""
        return engine_id

    def noted(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """What ``Call.edited`` says of a request, beside the API's name."""
        return {}

    @abstractmethod
    def render(self, body: Mapping[str, Any], raw: bytes, answer_id: str, stream: bool) -> bytes:
        """The answer to ``body``, whole or as the events of a stream, from the engine's whole answer ``raw``,
        which was parsed before. ``answer_id``: one that is unique in the run (:meth:`id_of`). Raise
        :class:`BadAnswer` when the API cannot express the answer.
        """

    def error(self, status: int, raw: bytes) -> bytes:
        """The body of an error answer in this API's shape."""
        return raw

    def error_event(self, status: int, raw: bytes) -> bytes:
        """The same error as the last event of a stream."""
        return data_event(raw)


class TranslatedApi(ApiFormat):
    """An API that engines do not speak."""

    def id_of(self, engine_id: str | None, own: str) -> str:
        """The engine's id, if it gave one."""
        return engine_id or own

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
