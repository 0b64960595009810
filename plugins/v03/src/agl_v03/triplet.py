"""``Triplet``: a transition that an agent of Agent Lightning 0.1 to 0.3 returns as its own record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agentlightning.types import Model, Tags


class _TripletType(msgspec.StructMeta):
    """Takes ``prompt`` and ``response`` as in Agent Lightning 0.1 to 0.3: ``{"token_ids": […]}``."""

    def __call__(cls, *args: Any, **fields: Any) -> Any:
        for name in ("prompt", "response"):
            given = fields.pop(name, None)
            if isinstance(given, Mapping):
                fields.setdefault(f"{name}_ids", given.get("token_ids") or [])
                if name == "response" and given.get("logprobs"):
                    fields.setdefault("logprobs", given["logprobs"])
            elif given is not None:
                raise TypeError(f"Triplet: {name} is {type(given).__name__}, not {{'token_ids': [...]}}")
        return super().__call__(*args, **fields)


class Triplet(Model, metaclass=_TripletType):
    """(prompt ids, response ids, reward) of one call with its tags."""

    prompt_ids: list[int]
    response_ids: list[int]
    reward: float | None = None
    logprobs: list[float] | None = None
    tags: Tags = {}
    call_id: str | None = None
    metadata: dict[str, Any] = {}

    @property
    def prompt(self) -> dict[str, Any]:
        """The prompt's ids, as in Agent Lightning 0.1 to 0.3."""
        return {"token_ids": self.prompt_ids}

    @property
    def response(self) -> dict[str, Any]:
        """The response's ids, as in Agent Lightning 0.1 to 0.3."""
        return {"token_ids": self.response_ids, "logprobs": self.logprobs}
