"""The CPU as a platform of verl, so that the real trainer runs where there is no accelerator.

verl 0.9 knows NVIDIA, AMD and Huawei, and asks a platform for what ``torch.cuda`` would say. Active with
``VERL_PLATFORM=cpu``. Ray is told of one logical "GPU" a rank, because verl's resource pools count nothing
else.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

MEMORY = 1 << 34
"""What ``mem_get_info`` says there is, in bytes: verl only prints it."""


def _nothing(*args: Any, **kwargs: Any) -> int:
    return 0


class CpuModule(types.ModuleType):
    """``torch.cpu`` with the functions that verl expects of a device's module."""

    def __init__(self) -> None:
        super().__init__("agl_verl_cpu")
        for name in [
            "empty_cache",
            "ipc_collect",
            "manual_seed",
            "manual_seed_all",
            "max_memory_allocated",
            "max_memory_reserved",
            "memory_allocated",
            "memory_reserved",
            "reset_peak_memory_stats",
            "set_device",
            "synchronize",
        ]:
            setattr(self, name, _nothing)
        self.mem_get_info = lambda *args: (MEMORY // 2, MEMORY)
        self.is_available = lambda: False
        self.get_device_name = lambda *args: "CPU"
        self.get_rng_state = lambda *args: torch.get_rng_state()
        self.set_rng_state = lambda state, *args: torch.set_rng_state(state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name)


MODULE = CpuModule()


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """See the module."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "generic")
    device_module = property(lambda self: MODULE)

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")  # an index 0 would be taken for the first CUDA device

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: int | None = None) -> None: ...
    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...
    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "AGL_VISIBLE_CPUS"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
