"""The dialects that are served, by path: OpenAI's Responses and Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from agentlightning.gateway.apis import messages, responses
from agentlightning.gateway.apis.base import ApiFormat, WrittenArguments, typed_event
from agentlightning.gateway.apis.chat import KEEP_ALIVE
from agentlightning.gateway.apis.messages_answer import message, message_error
from agentlightning.gateway.apis.messages_events import PING, message_events
from agentlightning.gateway.apis.responses_answer import response
from agentlightning.gateway.apis.responses_events import response_events
from agentlightning.gateway.errors import error_body
from agentlightning.gateway.upstream.answer import DECODE_ERRORS, parse_error


class Responses:
    """``POST /v1/responses``. Its errors are those of the chat API."""

    name = "responses"
    keep_alive = KEEP_ALIVE

    def chat(self, asked: Mapping[str, Any], said: WrittenArguments) -> dict[str, Any]:
        """The chat body; arguments come back to the letter, so nothing need be looked up."""
        return responses.chat_body(asked)

    def answer(self, asked: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
        """A ``response``."""
        return response(asked, chat)

    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """Its stream."""
        return response_events(answer)

    def error(self, status: int, raw: bytes) -> bytes:
        """As it is, where it says it like OpenAI; in these words, where an engine says it otherwise."""
        try:
            alike = isinstance(msgspec.json.decode(raw)["error"], dict)
        except (*DECODE_ERRORS, LookupError, TypeError):
            alike = False
        info = parse_error(status, raw)
        return raw if alike else error_body(status, info.code, info.message)

    def error_event(self, status: int, raw: bytes) -> bytes:
        """An ``error`` event; its field ``error`` is what makes the SDK raise."""
        error = msgspec.json.decode(raw)["error"]
        head = {"type": "error", "code": error["code"], "message": error["message"], "param": None}
        return typed_event({**head, "error": error, "sequence_number": 0})


class Messages:
    """``POST /v1/messages``."""

    name = "messages"
    keep_alive = PING

    def chat(self, asked: Mapping[str, Any], said: WrittenArguments) -> dict[str, Any]:
        """The chat body, with the arguments of earlier tool calls as the model wrote them."""
        return messages.chat_body(asked, said)

    def answer(self, asked: Mapping[str, Any], chat: Mapping[str, Any]) -> dict[str, Any]:
        """A ``message``."""
        return message(asked, chat)

    def events(self, answer: Mapping[str, Any]) -> Iterator[bytes]:
        """Its stream."""
        return message_events(answer)

    def error(self, status: int, raw: bytes) -> bytes:
        """``{"type": "error", "error": {…}}``."""
        return message_error(status, raw)

    def error_event(self, status: int, raw: bytes) -> bytes:
        """The same, as an event."""
        return typed_event(msgspec.json.decode(message_error(status, raw)))


RESPONSES: Final[ApiFormat] = Responses()
MESSAGES: Final[ApiFormat] = Messages()
FORMATS_BY_PATH: Final[dict[str, ApiFormat]] = {"/v1/responses": RESPONSES, "/v1/messages": MESSAGES}
