"""The edits of one route, by the fields that this plugin adds to the section ``gateway`` of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field, model_validator

from agentlightning.gateway.answer import EngineAnswer
from agentlightning.gateway.client import EngineClient
from agentlightning.gateway.errors import CallFailure
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.route import CallEdits, Fitted, Upstream
from agentlightning.types.sections import Section
from agl_gateway.edits.over_length import ContextFitter
from agl_gateway.edits.reasoning import StreamReasoningSplitter, split_answer, split_message


class RouteSection(Section):
    """What the gateway does to calls of a policy (``docs/gateway.md``)."""

    over_length: Literal["error", "drop", "truncate"] = "error"
    """How to treat prompts that are too long for the policy. ``error``: answer 400
    ``context_length_exceeded``. ``drop``: answer the same, and leave the rollout out of training.
    ``truncate``: drop the oldest chatter until the prompt fits."""
    reserve: int = Field(default=0, ge=0)
    """Tokens of the context that are kept free for the answer; 0: one, by the engine's own check."""
    max_len: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answer together; none: the engine's limit."""
    reasoning: Literal["keep", "split", "split-opened"] = "keep"
    """Whether agents get ``<think>…</think>`` in the text, or as ``reasoning_content``. ``split-opened``: the
    chat template writes the first ``<think>`` into the prompt."""

    @model_validator(mode="after")
    def _room_for_a_prompt(self: Any) -> Any:
        if self.max_len is not None and self.max_len <= self.reserve:
            raise ValueError(
                f"reserve: {self.reserve} tokens for the answer leave none of max_len {self.max_len} for a "
                "prompt; give less"
            )
        return self


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
