"""verl's critic, made to run everywhere, from a seed, and on steps with hardly a token.

verl loads a value model with an attention that only GPUs have, draws its head from whatever state the
worker's generator is in, and whitens advantages by a variance that one token does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from agl_verl.inside.learning.stepping import any_token, stepping

Gae = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def valued(engine: type) -> type:
    """``engine``, verl's FSDP engine with a value head; the head is the same for the same seed, and makes no
    step without a token.
    """

    class Valued(stepping(engine, any_token)):  # type: ignore[misc]
        """Overrides where verl makes the network."""

        def _build_module(self) -> Any:
            with own_loader(self.engine_config.seed):
                return super()._build_module()

    return Valued


@contextmanager
def own_loader(seed: int) -> Iterator[None]:
    """Within it verl's value models are loaded by :func:`load`."""
    import verl.utils.model as models

    theirs = models.load_valuehead_model

    def ours(local_path: str, torch_dtype: torch.dtype, model_config: Any, trust_remote_code: bool) -> Any:
        return load(local_path, torch_dtype, model_config, trust_remote_code, seed)

    models.load_valuehead_model = ours
    try:
        yield
    finally:
        models.load_valuehead_model = theirs


def load(policy: str, dtype: torch.dtype, config: Any, trust_remote_code: bool, seed: int) -> Any:
    """The policy's network with a head of one number a token, drawn from ``seed``. The attention is the one
    that ``config`` names.
    """
    from transformers import AutoModelForTokenClassification

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForTokenClassification.from_pretrained(
            policy, dtype=dtype, config=config, trust_remote_code=trust_remote_code
        )


def estimating(theirs: Gae) -> Gae:
    """verl's GAE, which also tells the driver how far logprobs are apart, as every step does.

    A step of fewer than two trained tokens has nothing to whiten by: its advantages are 0, and the return of
    a single token is its reward.
    """

    @wraps(theirs)
    def gae(token_level_rewards: Any, values: Any, response_mask: Any, gamma: Any, lam: Any) -> Any:
        from agl_verl.inside.steps.sampler import tell_and_correct

        tell_and_correct()
        if int(response_mask.sum()) < 2:
            return torch.zeros_like(values), token_level_rewards * response_mask
        return theirs(
            token_level_rewards=token_level_rewards,
            values=values,
            response_mask=response_mask,
            gamma=gamma,
            lam=lam,
        )

    return gae
