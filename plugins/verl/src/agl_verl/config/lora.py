"""LoRA: small matrices beside frozen weights, as an option of the driver and as lines for verl.

The network of the policy stays what it is; of each layer that is named, ``W + alpha / rank * B @ A`` takes
the place of ``W``, and only A and B are trained (Hu et al. 2021, arXiv:2106.09685). Engine and export get
that sum: nobody but the trainer needs to know (``inside/learning/lora.py``).
"""

from __future__ import annotations

import msgspec

from agentlightning.types import UsageError
from agl_verl.config.quote import quote


class LoraError(UsageError, ValueError):
    """Settings of LoRA that cannot be used."""


class Lora(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``backend.options.lora``."""

    rank: int
    """Rows of A, columns of B."""
    alpha: int = 16
    """The product of B and A is multiplied by ``alpha / rank``."""
    targets: str | list[str] = "all-linear"
    """Names of the linear layers that get them (``q_proj``, …); ``all-linear``: all but the last one."""

    def check(self) -> None:
        """Raises LoraError for what cannot be used."""
        if self.rank < 1 or self.alpha < 1 or not self.targets:
            raise LoraError(
                f"backend.options.lora: rank {self.rank} and alpha {self.alpha} must be 1 or more, and "
                "targets name at least one layer"
            )


def lines(lora: Lora, seed: int) -> list[str]:
    """Its lines of verl's configuration, in which FSDP has other words than the rest."""
    model, actor = "actor_rollout_ref.model", "actor_rollout_ref.actor"
    named = lora.targets
    targets = quote(named) if isinstance(named, str) else f"[{','.join(map(quote, named))}]"
    return [
        f"{model}.lora_rank={lora.rank}",
        f"{model}.lora_alpha={lora.alpha}",
        f"{model}.target_modules={targets}",
        f"{model}.lora.merge=True",
        # What is gathered tensor by tensor is sharded by FSDP 2.
        f"{actor}.strategy=fsdp2",
        f"{actor}.fsdp_config.strategy=fsdp2",
        f"{actor}.fsdp_config.seed={seed % 2**31}",
        # The policy in Hugging Face layout is written by us: verl would write the matrices apart.
        f"{actor}.checkpoint.save_contents=[model,optimizer,extra]",
    ]
