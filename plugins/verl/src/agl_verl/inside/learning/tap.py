"""A tap on verl's training workers: the gradient before it is clipped, and what went into the loss.

For comparisons (``bench/verl_parity``). Off unless the variable names a folder; each optimizer step then
writes ``<n>-<rank>.safetensors`` there, a critic's in ``critic/``. In it are columns of the rank's rows,
end to end (``advantages``, ``mask``; with a critic all of :data:`OF_CRITIC`, and ``lengths``), and with the
first rank ``grad/<parameter>``, of a critic's value head and of LoRA also
``before/<parameter>``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

TAP = "AGL_VERL_TAP"
COLUMNS = {"advantages": "advantages", "mask": "response_mask"}
OF_CRITIC = {"values": "values", "returns": "returns", "rewards": "rm_scores", "old": "old_log_probs",
             "responses": "responses", "prompts": "prompts"}  # fmt: skip
"""Name in the file → field of verl's rows."""
HEAD, SMALL = "score.", ".lora_"
"""Begins the names of a value head's parameters; is in those of LoRA's matrices."""


def tapped(engine: type, folder: str = "") -> type:
    """``engine``, a class of verl's, with the tap if it is asked for; ``folder``: within that one."""
    asked = os.environ.get(TAP)
    if asked is None:
        return engine

    place = Path(asked) / folder

    class Tapped(engine):  # type: ignore[misc]
        """Writes after the backward passes of an update."""

        def forward_backward_batch(self, data: Any, *args: Any, **given: Any) -> Any:
            found = super().forward_backward_batch(data, *args, **given)
            if "advantages" in data.keys():  # noqa: SIM118 - a TensorDict is no mapping
                write(place, self.module, data)
            return found

    return Tapped


def write(folder: Path, module: torch.nn.Module, data: Any) -> None:
    """A step's file of this rank; the step's number is that of the rank's files there."""
    from safetensors.torch import save_file

    tensors = {}
    for name, parameter in module.named_parameters():  # all ranks gather
        if parameter.grad is not None:
            tensors[f"grad/{name}"] = whole(parameter.grad)
        if name.startswith(HEAD) or SMALL in name:
            tensors[f"before/{name}"] = whole(parameter)
    rank = int(os.environ.get("RANK", "0"))
    if rank:  # the first one has it whole
        tensors = {}
    tensors.update(columns(data))
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob(f"*-{rank}.safetensors")))
    save_file(tensors, folder / f"{number}-{rank}.safetensors")


def columns(data: Any) -> dict[str, torch.Tensor]:
    """The rows' fields, and how long their prompts and responses are (two numbers a row)."""
    names = {**COLUMNS, **OF_CRITIC} if "values" in data.keys() else COLUMNS  # noqa: SIM118
    found = {}
    for name, key in names.items():
        column = data[key]
        flat = column.values() if column.is_nested else column.reshape(-1)
        found[name] = flat.detach().cpu().contiguous()
    if names is not COLUMNS:
        sizes = [data[key].offsets().diff().cpu() for key in ("prompts", "responses")]
        found["lengths"] = torch.stack(sizes, 1).contiguous()
    return found


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Gathered from all ranks; a copy."""
    full = getattr(tensor, "full_tensor", None)
    return (full() if full is not None else tensor).detach().cpu().clone().contiguous()
