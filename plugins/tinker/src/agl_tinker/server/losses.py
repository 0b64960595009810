"""The losses of the API, each summed over the targets of a call: what a client's numbers mean.

With ``logp`` under the present weights, ``q`` the sampler's logprobs, advantages A and r = exp(logp − q):

    cross_entropy         −Σ weights · logp
    importance_sampling   −Σ r · A
    ppo                   −Σ min( r·A, clamp(r, low, high)·A )          arXiv:1707.06347
    cispo                 −Σ sg( clamp(r, low, high) ) · logp · A       arXiv:2506.13585; sg: no gradient

``low`` and ``high`` are bounds of the ratio, 0.8 and 1.2 unless ``loss_fn_config`` (``clip_low_threshold``,
``clip_high_threshold``) or inputs of these names say otherwise. Nothing is divided by a number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from agentlightning.types.base import RequestRefused

Inputs = Mapping[str, Tensor]
_BOUNDS = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_CLIPPED = ("logprobs", "advantages")


def cross_entropy(logp: Tensor, given: Inputs) -> Tensor:
    return -(given["weights"] * logp).sum()


def importance_sampling(logp: Tensor, given: Inputs) -> Tensor:
    return -(torch.exp(logp - given["logprobs"]) * given["advantages"]).sum()


def ppo(logp: Tensor, given: Inputs) -> Tensor:
    ratio, advantages = torch.exp(logp - given["logprobs"]), given["advantages"]
    return -torch.minimum(ratio * advantages, _bounded(ratio, given) * advantages).sum()


def cispo(logp: Tensor, given: Inputs) -> Tensor:
    ratio = torch.exp(logp - given["logprobs"]).detach()
    return -(_bounded(ratio, given) * logp * given["advantages"]).sum()


def _bounded(ratio: Tensor, given: Inputs) -> Tensor:
    return torch.minimum(torch.maximum(ratio, given["clip_low_threshold"]), given["clip_high_threshold"])


Loss = Callable[[Tensor, Inputs], Tensor]
LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
}


def inputs_of(loss: str) -> tuple[str, ...]:
    """What each datum must bring beside ``target_tokens``."""
    return ("weights",) if loss == "cross_entropy" else _CLIPPED


def bounds_of(loss: str, config: Mapping[str, float | str]) -> dict[str, float]:
    """The bounds of the ratio in a call's ``loss_fn_config``. Raises RequestRefused for an unknown loss, and
    for a setting that the loss has not: it would be ignored.
    """
    if loss not in LOSSES:
        there = f"{', '.join(sorted(LOSSES))}, and custom losses that the client computes"
        raise RequestRefused(400, "loss", f"the loss {loss!r} is not here; there are {there}")
    known = _BOUNDS if loss in ("ppo", "cispo") else {}
    found = dict(known)
    for name, value in config.items():
        if name not in known or isinstance(value, str):
            raise RequestRefused(
                400, "loss-config", f"loss_fn_config: {loss} has no setting {name!r} = {value!r}; it has "
                f"{', '.join(known) or 'none'}"
            )  # fmt: skip
        found[name] = value
    return found
