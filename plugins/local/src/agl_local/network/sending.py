"""Numbers of the host on their way to a device, by one copy that nobody waits for.

A copy from pageable memory makes the host wait until the device has done all it was told before; one from
pinned memory does not. Torch keeps pinned memory until the copies from it are done.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def sent(device: torch.device, *tensors: Tensor) -> tuple[Tensor, ...]:
    """``tensors``, of one type, on ``device``: as they are if they are there, else as views of one tensor."""
    if all(tensor.device.type == device.type for tensor in tensors):
        return tensors
    whole = torch.cat([tensor.reshape(-1) for tensor in tensors])
    if device.type != "mps":  # which has no pinned memory
        whole = whole.pin_memory()
    parts = torch.split(whole.to(device, non_blocking=True), [tensor.numel() for tensor in tensors])
    return tuple(part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))


def sent_list(device: torch.device, values: Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
    """A tensor of ``values`` on ``device``."""
    return sent(device, torch.tensor(values))[0]
