"""What a checkpoint of verl's must hold for this run: the files of every rank, of policy and critic.

A file that is not there when verl says it has saved was written on another machine; one that is not there on
resume belongs to a run with other ranks, without a critic, or without LoRA.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from agl_verl.config.lora import Lora

KINDS = ("model", "optim", "extra_state")
"""What each rank saves."""
ADAPTERS = Path("actor") / "lora_train_meta.json"
"""There with LoRA only: rank and alpha of its matrices."""


class Shape(NamedTuple):
    """Of a run's checkpoints."""

    ranks: int = 1
    critic: bool = False
    lora: Lora | None = None

    def lacks(self, place: Path) -> str | None:
        """The first file that is not in the checkpoint ``place``; ``None``: it has all."""
        parts = ["actor", "critic"] if self.critic else ["actor"]
        wanted = [
            Path(part) / f"{kind}_world_size_{self.ranks}_rank_{rank}.pt"
            for part in parts
            for kind in KINDS
            for rank in range(self.ranks)
        ]
        wanted += [ADAPTERS] if self.lora is not None else []
        missing = [str(file) for file in wanted if not (place / file).is_file()]
        if not missing and not list((place / "actor" / "huggingface").glob("*.safetensors")):
            missing = ["actor/huggingface/*.safetensors"]
        return missing[0] if missing else None

    def differs(self, place: Path) -> str | None:
        """Why a run of this shape cannot go on from ``place``; ``None``: it can."""
        there = (
            json.loads((place / ADAPTERS).read_text(encoding="utf-8"))
            if (place / ADAPTERS).exists()
            else None
        )
        ours = None if self.lora is None else {"r": self.lora.rank, "lora_alpha": self.lora.alpha}
        theirs = None if there is None else {name: there[name] for name in ("r", "lora_alpha")}
        if ours != theirs:
            return f"its LoRA is {theirs}, this run's {ours}; give the option lora it began with"
        missing = self.lacks(place)
        if missing is None:
            return None
        return f"it has no {missing}; give the ranks and the recipe it began with, or remove its folder"
