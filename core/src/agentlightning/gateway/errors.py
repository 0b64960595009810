"""Errors an agent sees, in the shape the OpenAI SDK understands.

Every refusal has an HTTP status, a short ``reason`` that is counted, and a message that says what to do. No
message carries a key.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

SDK_NO_RETRY = {"x-should-retry": "false"}
"""The openai SDK retries 409 and 5xx by itself unless the server says otherwise."""
TOO_LONG = "context_length_exceeded"
"""OpenAI's code for a prompt that does not fit; frameworks look for it."""
_KINDS = {401: "authentication_error", 404: "not_found_error", 409: "conflict_error"}


class RequestRefused(Exception):
    """A request that is not forwarded. ``reason`` goes into the counts."""

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


class BadAnswer(Exception):
    """The engine answered something that is not the API's shape; the message says where."""


class EngineUnreachable(Exception):
    """The engine could not be asked, or did not finish. ``status`` is what the agent gets (502, 503 or
    504); ``tokens``: what it had sampled, as far as known."""

    def __init__(self, status: int, code: str, message: str, *, tokens: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.tokens = tokens


class AgentGone(Exception):
    """The agent hung up before its answer was complete."""


def error_body(status: int, code: str, message: str) -> bytes:
    """An OpenAI error object as JSON bytes."""
    kind = _KINDS.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def error_response(status: int, code: str, message: str, *, retry: bool = True) -> web.Response:
    """An error answer; ``retry=False`` tells the SDK that trying again cannot help."""
    headers = ({"Retry-After": "1"} if status == 503 else None) if retry else SDK_NO_RETRY
    return web.Response(
        body=error_body(status, code, message),
        status=status,
        headers=headers,
        content_type="application/json",
    )
