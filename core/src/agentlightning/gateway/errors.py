"""Errors that an agent sees, in the shape that OpenAI's SDK understands.

Every error has an HTTP status, a short code that is counted or recorded, and a message that says what to do.
No message carries a key.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from agentlightning.store.base import StoreError

SDK_NO_RETRY = {"x-should-retry": "false"}
"""The openai SDK retries 409 and 5xx by itself unless the server says otherwise."""
TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a prompt that does not fit; frameworks look for it."""
_KINDS = {401: "authentication_error", 404: "not_found_error", 409: "conflict_error"}


class RequestRefused(Exception):
    """A request that is answered with an error and leaves no record; ``reason`` goes into the counts."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        retry: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.retry = retry
        self.headers: dict[str, str] = {}
        """Further headers of the answer."""


class CallFailure(Exception):
    """An admitted call that ends without an answer: it is recorded as an error, and the agent is told.

    ``status``, ``code`` and the message are what the agent gets; ``retry=False`` tells its SDK not to try
    again. ``tokens``: sampled before the failure, as far as known. ``recorded_as`` replaces ``code`` in the
    record. ``raw`` and ``headers``: the engine's own error answer, passed on unchanged. ``event``: the
    engine's own error event of a stream, likewise.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        tokens: int = 0,
        retry: bool = True,
        recorded_as: str | None = None,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        event: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.tokens = tokens
        self.retry = retry
        self.recorded_as = recorded_as or code
        self.raw = raw
        self.headers = dict(headers or {})
        self.event = event

    @property
    def over_length(self) -> bool:
        """The prompt does not fit the model's context."""
        return self.code == TOO_LONG

    @property
    def record(self) -> str:
        """The failure as ``Call.error``."""
        return f"{self.recorded_as}: {self}"[:2000]


class BadAnswer(CallFailure):
    """The engine's answer is not of the API's shape; the message says where."""

    def __init__(self, message: str) -> None:
        super().__init__(502, "bad-answer", message)


class EngineUnreachable(CallFailure):
    """The engine could not be asked, or did not finish: status 502, 503 or 504."""


class AgentGone(Exception):
    """The agent hung up before its answer was complete."""


def store_failed(message: str, error: Exception) -> RequestRefused:
    """A request that the store failed. The text of a :class:`StoreError` is for people; any other exception
    is only logged.
    """
    reason = f"{message}: {error}" if isinstance(error, StoreError) else message
    return RequestRefused(503, "store-failed", reason, retry=True)


def error_body(status: int, code: str, message: str) -> bytes:
    """An OpenAI error object as JSON bytes."""
    kind = _KINDS.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})
