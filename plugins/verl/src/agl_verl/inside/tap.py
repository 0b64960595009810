"""A tap on verl's training worker: the gradient before it is clipped, the advantages as the loss got them.

For comparisons (``bench/verl_parity``). Off unless the variable names a folder; each optimizer step then
writes ``<n>.safetensors`` there: ``grad/<parameter>``, and ``advantages``, ``mask`` of all rows, end to end.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

TAP = "AGL_VERL_TAP"


def tapped(engine: type) -> type:
    """``engine``, a class of verl's, with the tap if it is asked for."""
    folder = os.environ.get(TAP)
    if folder is None:
        return engine

    class Tapped(engine):  # type: ignore[misc]
        """Writes after the backward passes of an update."""

        def forward_backward_batch(self, data: Any, *args: Any, **given: Any) -> Any:
            found = super().forward_backward_batch(data, *args, **given)
            if "advantages" in data.keys():  # noqa: SIM118 - a TensorDict is no mapping
                write(Path(folder), self.module, data)
            return found

    return Tapped


def write(folder: Path, module: torch.nn.Module, data: Any) -> None:
    """One step's file; its number is that of the files there."""
    from safetensors.torch import save_file

    tensors = {
        f"grad/{name}": whole(parameter.grad)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    for name, key in (("advantages", "advantages"), ("mask", "response_mask")):
        column = data[key]
        flat = column.values() if column.is_nested else column.reshape(-1)
        tensors[name] = flat.detach().cpu().contiguous()
    if int(os.environ.get("RANK", "0")) == 0:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / f"{len(list(folder.glob('*.safetensors')))}.safetensors")


def whole(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient gathered from all ranks."""
    full = getattr(gradient, "full_tensor", None)
    return (full() if full is not None else gradient).detach().cpu().contiguous()
