"""The APIs that agents speak, by path."""

from __future__ import annotations

from typing import Final

from agentlightning.gateway.apis.base import ApiFormat
from agentlightning.gateway.apis.chat import CHAT, COMPLETIONS
from agentlightning.gateway.apis.messages import MESSAGES
from agentlightning.gateway.apis.responses import RESPONSES

FORMATS: Final[dict[str, ApiFormat]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
"""The format of each route that makes a model call."""


def format_of(path: str) -> ApiFormat:
    """The format that an error of ``path`` is written in: that of its API, else the chat API's."""
    path = path if path.startswith("/v1/") else f"/v1{path}"
    bases = {**FORMATS, "/v1/conversations": RESPONSES}
    return next((api for base, api in bases.items() if path == base or path.startswith(f"{base}/")), CHAT)
