"""The edits of one route, by its section (:mod:`agl_gateway.edits.section`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentlightning.gateway.answer import EngineAnswer
from agentlightning.gateway.client import EngineClient
from agentlightning.gateway.errors import CallFailure
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.route import CallEdits, Fitted, Upstream
from agl_gateway.edits.over_length import ContextFitter
from agl_gateway.edits.reasoning import StreamReasoningSplitter, split_answer, split_message
from agl_gateway.edits.section import RouteSection


class RouteEdits(CallEdits):
    """The edits of one route. Those of a route without settings change nothing, and count prompts."""

    def __init__(self, route: Upstream, client: EngineClient, metrics: Metrics) -> None:
        given = route.settings
        self.settings = given if isinstance(given, RouteSection) else RouteSection()
        self.fitter = ContextFitter(route, self.settings, client, metrics)

    async def fit(self, api: str, body: dict[str, Any], kept: dict[Any, Any]) -> Fitted | None:
        """The request, shortened if its prompt leaves no room for an answer."""
        return await self.fitter.fit(body, kept, api)

    def too_long(self, failure: CallFailure) -> str:
        """The policy by which the prompt was refused. If the engine did it, count prompts from now on."""
        self.fitter.always_count |= failure.recorded_as != "over-length"
        return "drop" if self.settings.over_length == "drop" else "error"

    def whole(self, api: str, raw: bytes) -> bytes:
        """The answer with its reasoning apart."""
        return split_answer(raw, self._opened) if self._splits(api) else raw

    def events(self, api: str) -> Callable[[bytes], bytes] | None:
        """The same for a stream."""
        return StreamReasoningSplitter(self._opened).chunk if self._splits(api) else None

    def recorded(self, api: str, answer: EngineAnswer) -> dict[str, Any]:
        """The same for the record."""
        messages = [choice.message for choice in answer.choices if choice.message]
        split = self._splits(api) and any([split_message(one, self._opened) for one in messages])
        return {"reasoning": "split"} if split else {}

    def _splits(self, api: str) -> bool:
        return api == "chat" and self.settings.reasoning != "keep"

    @property
    def _opened(self) -> bool:
        return self.settings.reasoning == "split-opened"
