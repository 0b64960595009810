"""verl's dataset: one placeholder a step. Which tasks a step rolls out is for the algorithm to say."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset

STEPS = 1_000_000
"""More than a run has; it ends when the driver's last step is done."""


class Steps(Dataset[dict[str, Any]]):
    """As ``data.custom_cls``; verl's arguments say nothing to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"raw_prompt": [{"role": "user", "content": ""}], "index": index}
