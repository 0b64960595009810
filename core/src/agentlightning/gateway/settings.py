"""The sections of a run's description that the gateway takes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agentlightning.keys import ATTEMPT_BYTES
from agentlightning.types.sections import Section, SelectField


class CallSection(Section):
    """Which calls are trained, and which policy answers them."""

    select: SelectField = None
    """Agents whose calls are trained: a name, names, or ``re:pattern``; none: all agents."""
    policies: dict[str, str] = {}
    """Which agent talks to which policy: agent, role, node or ``re:…`` → name; the first entry that matches
    counts. If one policy is trained, all other agents talk to it."""


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
    def _room_for_a_prompt(self) -> RouteSection:
        if self.max_len is not None and self.max_len <= self.reserve:
            raise ValueError(
                f"reserve: {self.reserve} tokens for the answer leave none of max_len {self.max_len} for a "
                "prompt; give less"
            )
        return self


class GatewaySection(RouteSection):
    """Where the gateway listens (:mod:`agentlightning.gateway.listen`), and what it does to calls of the
    policy (``docs/gateway.md``).
    """

    listen: str | None = None
    """``host``, ``host:port`` or ``[host]:port``; none: a free port of 127.0.0.1."""
    advertise: str | None = None
    """URL that agents get instead, e.g. ``http://10.0.0.5``; without a port, the bound port is added."""
    max_requests: int = Field(default=16_384, ge=1)
    """Requests that a gateway has under way, at most; a further one is answered 503 ``busy``, and
    the SDK asks again a second later."""
    attempt_bytes: int = Field(default=ATTEMPT_BYTES, ge=1)
    """Bytes of requests that one attempt may send, all together; a further request is answered 413
    ``attempt-bytes`` and counted. Several gateways count each for itself."""
