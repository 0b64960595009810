"""Guided choice: a request names the answers it allows, and the engine says which token ids these are.

Such a call is sampled from the allowed sequences only. It can be trained if the allowed ids are known and the
engine's logprobs are those of the masked distribution; an engine confirms both by answering with
``guided_choice_ids``. Without them the call stays masked.

Invariant: the recorded ``allowed`` sequences include the response, token for token.
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
    return isinstance(outputs, dict) and {k for k, v in outputs.items() if v is not None} == {"choice"}


def use_structured_outputs(body: dict[str, Any]) -> None:
    """Rename ``guided_choice`` to ``structured_outputs`` (in place), which engines share: vLLM has dropped
    the older field and, given it, answers unconstrained without an error.
    """
    if body.get("guided_choice") is not None and body.get("structured_outputs") is None:
        body["structured_outputs"] = {"choice": body.pop("guided_choice")}


def is_allowed(allowed: Sequence[Sequence[int]], response: Sequence[int] | None) -> bool:
    """Whether a response is one of the allowed, with or without an end token, or the beginning of one."""
    if not response:
        return False
    ids = list(response)
    return any(ids == list(one[: len(ids)]) or ids[:-1] == list(one) for one in allowed)
