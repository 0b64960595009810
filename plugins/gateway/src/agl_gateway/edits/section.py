"""The fields that this plugin adds to the section ``gateway`` of a run: what is done to calls of a policy."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from agentlightning.types.sections import Section


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
