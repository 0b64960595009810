"""A pretend accelerator as a device of torch: ``device.cpp``, compiled once, under the name ``pretend``.

``register()`` adds it to this process; processes that are started with :func:`environment` have it as soon as
they import torch, by torch's entry point for such devices. Its module ``torch.pretend`` answers as
``torch.cuda`` does, so that code which asks ``torch.get_device_module`` meets the same names. What it counts:
see ``device.cpp``.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("device.cpp")
COUNTS = ("launches", "h2d", "d2h", "waits", "graphs", "nodes", "h2d_bytes", "d2h_bytes", "bytes", "peak")
"""The counts, in the order of ``device.cpp``."""
REPORT = "PRETEND_DEVICE_REPORT"
"""Names a folder, into which each process writes its counts when it ends."""


def compiler() -> str | None:
    """The C++ compiler, if there is one."""
    return shutil.which(os.environ.get("CXX", "g++"))


def built() -> Path:
    """The folder with the compiled device, in the environment of this Python. It is made where there is none
    for these versions of the source and of torch, which takes half a minute. Raises RuntimeError without a
    compiler.
    """
    key = hashlib.sha256(SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:12]
    folder = Path(sys.prefix) / "pretend-device" / key
    if folder.is_dir():
        return folder
    found = compiler()
    if found is None:
        raise RuntimeError("the pretend device is compiled by g++, which is not here")
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        made = Path(beside, key)
        entry = made / "pretend_device-0.dist-info"
        entry.mkdir(parents=True)
        (entry / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: pretend-device\nVersion: 0\n", encoding="utf-8"
        )
        (entry / "entry_points.txt").write_text(
            "[torch.backends]\npretend = bench.gpu.pretend:register\n", encoding="utf-8"
        )
        _compile(found, made / "device.so")
        with suppress(OSError):  # another process was first
            made.rename(folder)
    return folder


def _compile(program: str, target: Path) -> None:
    from torch.utils.cpp_extension import include_paths, library_paths

    abi = int(torch.compiled_with_cxx11_abi())
    command = [program, "-shared", "-fPIC", "-O1", "-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    command += [f"-I{path}" for path in include_paths()] + [f"-L{path}" for path in library_paths()]
    subprocess.run([*command, str(SOURCE), "-ltorch_cpu", "-lc10", "-o", str(target)], check=True)


def environment() -> dict[str, str]:
    """This process' environment, for a child whose torch has the device too."""
    path = os.pathsep.join(filter(None, (str(built()), str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path}


def register() -> None:
    """Make ``pretend`` a device of this process. Idempotent."""
    if hasattr(torch, "pretend"):
        return
    torch.ops.load_library(str(built() / "device.so"))
    torch.utils.rename_privateuse1_backend("pretend")
    torch._register_device_module("pretend", _module())
    if folder := os.environ.get(REPORT):
        atexit.register(_report, Path(folder))


def _module() -> types.ModuleType:
    """``torch.pretend``: what torch asks of a device's module, and the part of torch.cuda that we use."""
    module: Any = types.ModuleType("torch.pretend")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: 0
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None  # its random numbers are the CPU's
    module.get_rng_state = lambda device=0: torch.get_rng_state()
    module.set_rng_state = lambda state, device=0: None
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    module.synchronize = lambda device=None: torch.ops.pretend.synchronize()
    module.CUDAGraph, module.graph = Graph, captured
    found: types.ModuleType = module
    return found


class Graph:
    """As ``torch.cuda.CUDAGraph``."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)

    def replay(self) -> None:
        """Compute what was captured, with what lies in the same memory now: one launch."""
        torch.ops.pretend.replay(self.number)

    def pool(self) -> tuple[int, int]:
        """The graph's memory; here every tensor has its own."""
        return (0, self.number)

    def __del__(self) -> None:
        torch.ops.pretend.forget(self.number)


@contextmanager
def captured(
    graph: Graph, pool: tuple[int, int] | None = None, capture_error_mode: str = "global"
) -> Iterator[None]:
    """As ``torch.cuda.graph``: what is launched inside becomes ``graph``."""
    torch.ops.pretend.capture_begin(graph.number)
    try:
        yield
    finally:
        torch.ops.pretend.capture_end(graph.number)


def counts() -> dict[str, int]:
    """What this process has launched, copied and waited for since :func:`reset`. Nodes are launches that the
    replays of graphs stood for; bytes and peak are memory in use now and at most.
    """
    return dict(zip(COUNTS, torch.ops.pretend.counts(), strict=True))


def names() -> dict[str, int]:
    """How often each operator, copy and kind of wait happened, most often first."""
    lines = [line.partition("\t") for line in torch.ops.pretend.names().splitlines()]
    return dict(sorted(((name, int(count)) for count, _, name in lines), key=lambda one: -one[1]))


def reset() -> None:
    """Count from zero."""
    torch.ops.pretend.reset()


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Yield a dictionary that holds, afterwards, what was counted inside."""
    reset()
    found: dict[str, int] = {}
    yield found
    found.update(counts())


def _report(folder: Path) -> None:
    found = {"command": sys.argv, "counts": counts(), "names": names()}
    (folder / f"{os.getpid()}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
