"""What the driver would compute with on this machine: for ``agl doctor``, before a policy is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_local.options import pick_device, read_options


def environment_info(options: Mapping[str, Any]) -> dict[str, str]:
    """Version of torch, device (with its free memory), precision and threads. OptionError for unknown options
    and for a device that is not there.
    """
    import torch

    read = read_options(options)
    device = pick_device(read.device)
    return {
        "torch": torch.__version__,
        "device": _device(device) if device.startswith("cuda") else device,
        "precision": read.dtype,
        "threads": str(read.update_threads),
        **_unused(device),
    }


def _device(name: str) -> str:
    import torch

    free, total = torch.cuda.mem_get_info(name)
    return f"{name} ({torch.cuda.get_device_name(name)}, {free / 1e9:.0f} of {total / 1e9:.0f} GB free)"


def _unused(device: str) -> dict[str, str]:
    """A GPU that is there while the options ask for the CPU."""
    import torch

    if device != "cpu":
        return {}
    if torch.cuda.is_available():
        return {"not used": torch.cuda.get_device_name(0)}
    return {"not used": "mps"} if torch.backends.mps.is_available() else {}
