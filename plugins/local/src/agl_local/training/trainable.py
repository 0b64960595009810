"""What of a policy a run trains: every parameter, all but those that ``freeze`` names, or the adapters of
LoRA.

Invariant: the optimizer state of a checkpoint belongs to exactly these parameters, so a run that trains
others cannot go on from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from agl_local.network.lora import Lora, adapt, check_rank
from agl_local.network.model import LanguageModel
from agl_local.network.quantized import Kind
from agl_local.policy.folder import fingerprint
from agl_local.training.freeze import freeze


@dataclass(frozen=True)
class Trainable:
    """``frozen``: names of the parameters that are not trained. ``base``: sha256 of the weights beside which
    ``lora`` has its adapters, as they are computed with: ``quantize`` is in what they are kept.
    """

    frozen: tuple[str, ...] = ()
    lora: Lora | None = None
    base: str | None = None
    quantize: Kind | None = None

    @classmethod
    def of(cls, model: LanguageModel, patterns: Sequence[str], lora: Lora | None = None) -> Trainable:
        """Freeze what ``patterns`` name; adapters come with :meth:`adapt`. Raises FreezeError, LoraError."""
        if lora is None:
            return cls(tuple(freeze(model, patterns)))
        check_rank(model, lora)
        return cls(lora=lora, base=fingerprint(model), quantize=model.base_kind)

    def adapt(self, model: LanguageModel, seed: int) -> None:
        """Put the adapters into ``model``, once nothing else copies it."""
        if self.lora is not None:
            adapt(model, self.lora, seed)

    def record(self) -> dict[str, Any]:
        """What a checkpoint keeps of it, as JSON."""
        return {
            "frozen": list(self.frozen),
            "lora": msgspec.to_builtins(self.lora),
            "base": self.base,
            "quantize": self.quantize,
        }

    def differs(self, saved: Mapping[str, Any]) -> str:
        """Why a run cannot go on from a checkpoint with the record ``saved``; empty: it can."""
        mine = self.record()
        if saved.get("lora") != mine["lora"]:
            return f"backend.options.lora was {saved.get('lora')} and is {mine['lora']}"
        if saved.get("quantize") != self.quantize:
            return f"backend.options.quantize was {saved.get('quantize')} and is {self.quantize}"
        if saved.get("base") != self.base:
            return "its adapters belong to other weights than those of backend.policy"
        then, now = set(saved.get("frozen", ())), set(self.frozen)
        parts = [
            f"{', '.join(sorted(names)[:3])}{' and more' if len(names) > 3 else ''} {what}"
            for names, what in ((then - now, "frozen then"), (now - then, "frozen now"))
            if names
        ]
        return f"backend.options.freeze has changed: {'; '.join(parts)}" if parts else ""
