"""A tap on verl's training worker: the gradient before it is clipped, the advantages as the loss got them.

For comparisons (``bench/verl_parity``). Off unless the variable names a folder; each optimizer step then
writes ``<n>-<rank>.safetensors`` there: ``advantages``, ``mask`` of the rank's rows, end to end, and with the
first rank ``grad/<parameter>``.
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

    place = Path(folder)

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

    tensors = {
        f"grad/{name}": whole(parameter.grad)
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    for name, key in (("advantages", "advantages"), ("mask", "response_mask")):
        column = data[key]
        flat = column.values() if column.is_nested else column.reshape(-1)
        tensors[name] = flat.detach().cpu().contiguous()
    rank = int(os.environ.get("RANK", "0"))
    if rank:  # the first one has the whole gradient
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith("grad/")}
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob(f"*-{rank}.safetensors")))
    save_file(tensors, folder / f"{number}-{rank}.safetensors")


def whole(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient gathered from all ranks."""
    full = getattr(gradient, "full_tensor", None)
    return (full() if full is not None else gradient).detach().cpu().contiguous()
