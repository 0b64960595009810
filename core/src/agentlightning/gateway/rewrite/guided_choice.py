"""Guided choice: a request that names the answers it allows, and an engine that says which ids these are.

Such a call is sampled from the allowed sequences only. It can be trained where the allowed ids are known and
the engine's logprobs are those of the masked distribution: an engine says both by answering with
``guided_choice_ids``. Without that word the call stays masked.

Invariant: a recorded ``allowed`` holds the response, token for token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FIELDS = frozenset({"guided_choice", "structured_outputs"})


def is_plain_choice(shaping: Mapping[str, Any]) -> bool:
    """Whether nothing but a list of allowed answers shapes the distribution."""
    if len(shaping) != 1 or not FIELDS.issuperset(shaping):
        return False
    outputs = shaping.get("structured_outputs")
    if outputs is None:
        return True
    asked = (
        {name for name, value in outputs.items() if value is not None} if isinstance(outputs, dict) else set()
    )
    return asked == {"choice"}


def use_structured_outputs(body: dict[str, Any]) -> None:
    """Say ``guided_choice`` as ``structured_outputs`` (in place), which engines share: vLLM has dropped the
    older field and, asked with it, answers without a constraint and without a word.
    """
    if body.get("guided_choice") is not None and body.get("structured_outputs") is None:
        body["structured_outputs"] = {"choice": body.pop("guided_choice")}


def is_allowed(allowed: Sequence[Sequence[int]], response: Sequence[int] | None) -> bool:
    """Whether a response is one of the allowed, with or without an end token, or the beginning of one."""
    if not response:
        return False
    given = list(response)
    return any(given == list(one[: len(given)]) or given[:-1] == list(one) for one in allowed)
