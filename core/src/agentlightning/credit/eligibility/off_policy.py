"""Calls that were sampled from another distribution than the run's policy, and which of them can be trained.

Such a call was sampled under a grammar or with a forced tool, or with a temperature, ``top_p`` or penalty of
its own. If its engine reports the probabilities that the tokens were really drawn with (``logprobs_mode:
processed``), the loss can weigh each token by the probability under the run's policy over that one, at most
``Recipe.off_policy_cap``: truncated importance sampling (arXiv 1802.01561). Otherwise the call is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

from agentlightning.types import Call, Recipe

OFF_POLICY = "off-policy-sampling"
"""The ledger's reason, and ``Call.masked`` of a call that the gateway knows to be sampled otherwise."""
_NEUTRAL = MappingProxyType(
    {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0,
     "frequency_penalty": 0.0, "repetition_penalty": 1.0}
)  # fmt: skip
"""Sampling values that leave the model's own distribution as it is."""


def is_weighed(call: Call, recipe: Recipe) -> bool:
    """Whether the call is trained by importance weights: it was sampled otherwise than the run's policy, and
    the probabilities of its tokens are recorded.
    """
    knows = call.logprobs_mode == "processed" and recipe.off_policy_cap is not None
    return knows and _is_off_policy(call, recipe)


def is_unweighable(call: Call, recipe: Recipe) -> bool:
    """Whether the call was sampled otherwise than the run's policy and cannot be weighed.

    A temperature of its own alone is no reason: without processed logprobs, a row is trained at the
    temperature at which it was sampled. Raw logprobs are of the model's own distribution, so they are those
    of sampling only if nothing shaped it.
    """
    if is_weighed(call, recipe):
        return False
    if call.masked == OFF_POLICY:
        return True
    if call.logprobs_mode == "raw":
        return bool(_differing(call, _NEUTRAL))
    return bool(_differing(call, _of(recipe)) - {"temperature"})


def weighed_calls(calls: Iterable[Call], recipe: Recipe) -> frozenset[str]:
    """Return the ids of the calls that are trained by importance weights."""
    return frozenset(call.call_id for call in calls if is_weighed(call, recipe))


def _is_off_policy(call: Call, recipe: Recipe) -> bool:
    return call.masked == OFF_POLICY or bool(_differing(call, _of(recipe)))


def _of(recipe: Recipe) -> dict[str, Any]:
    """The sampling values of the run's policy."""
    own = {"temperature": recipe.temperature, "top_p": recipe.top_p, "top_k": max(0, recipe.top_k)}
    return {**_NEUTRAL, **own}


def _differing(call: Call, wanted: MappingProxyType[str, Any] | dict[str, Any]) -> set[str]:
    """The names of the call's sampling values that are not the wanted ones. A value that it does not state
    is that of the run.
    """
    stated = {name: value for name in wanted if (value := call.sampling.get(name)) is not None}
    if stated.get("top_k") == -1:  # -1 and 0 both switch it off
        stated["top_k"] = 0
    return {name for name, value in stated.items() if value != wanted[name]}
