"""Errors that an agent sees, in the shape that OpenAI's SDK understands.

Every error has an HTTP status, a short code that is counted or recorded, and a message that says what to do.
No message carries a key.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from agentlightning.store.base import StoreError
from agentlightning.types.base import RequestRefused as RequestRefused

SDK_NO_RETRY = {"x-should-retry": "false"}
"""The openai SDK retries 409 and 5xx by itself unless the server says otherwise."""
TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a prompt that does not fit; frameworks look for it."""
_KINDS = {401: "authentication_error", 404: "not_found_error", 409: "conflict_error"}


class EngineReply(msgspec.Struct, frozen=True):
    """An engine's whole answer: status, headers to pass back, and body."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(eq=False)
class CallFailure(Exception):
    """An admitted call ends without an answer: it is recorded as an error, and the agent gets the error."""

    status: int
    code: str
    message: str
    retry: bool = field(default=True, kw_only=True)
    """Whether the agent's SDK may try again."""
    tokens: int = field(default=0, kw_only=True)
    """Tokens sampled before the failure, as far as known."""
    recorded_as: str | None = field(default=None, kw_only=True)
    """In place of ``code`` in the record."""
    masked: str | None = field(default=None, kw_only=True)
    """``Call.masked`` of the record: the kind of failure that the rollout has if its agent gives up."""
    reply: EngineReply | None = field(default=None, kw_only=True)
    """The engine's own error answer, which is sent to the agent unchanged."""
    event: bytes | None = field(default=None, kw_only=True)
    """The engine's own error event of a stream, which is sent unchanged too."""

    def __str__(self) -> str:
        return self.message

    @property
    def over_length(self) -> bool:
        """The prompt does not fit the model's context."""
        return self.code == TOO_LONG

    @property
    def record(self) -> str:
        """The text of ``Call.error``."""
        return f"{self.recorded_as or self.code}: {self.message}"[:2000]


class BadAnswer(CallFailure):
    """The engine's answer is not of the API's shape; the message says where."""

    def __init__(self, message: str) -> None:
        super().__init__(502, "bad-answer", message)


class EngineUnreachable(CallFailure):
    """The engine could not be reached, or did not finish: status 502, 503 or 504."""


def store_failed(message: str, error: Exception) -> RequestRefused:
    """The refusal of a request for which the store failed. It quotes a :class:`StoreError`, whose text is
    written for users, and no other exception.
    """
    reason = f"{message}: {error}" if isinstance(error, StoreError) else message
    return RequestRefused(503, "store-failed", reason, retry=True)


def error_body(status: int, code: str, message: str) -> bytes:
    """An OpenAI error object in JSON."""
    kind = _KINDS.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
