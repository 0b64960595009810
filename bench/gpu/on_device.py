"""A plugin of pytest that runs tests of the local driver with every policy on a device:

    AGL_TEST_DEVICE=pretend python -m pytest -p bench.gpu.on_device plugins/local/tests

Tensors that a test itself hands to a network are moved there, and what it gets back is moved to the CPU,
where tests compare. What the driver's own code does with devices is not touched. Tests that cannot run so are
left out: ``not_on_a_device.txt`` names them, with a reason each.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agl_local import options
from agl_local.network import hf, model
from agl_local.network.layout import realise
from agl_local.policy import folder

DEVICE = os.environ.get("AGL_TEST_DEVICE", "cuda")
LEFT_OUT = Path(__file__).with_name("not_on_a_device.txt")


def left_out() -> dict[str, str]:
    """Beginnings of the names of the tests that do not run on a device, and why: each reason stands above
    them.
    """
    found, reason = {}, ""
    for line in LEFT_OUT.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            reason = line[2:]
        elif line:
            found[line] = reason
    return found


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a folder that cannot run, without an import."""
    name = collection_path.relative_to(config.rootpath).as_posix()
    return True if f"{name}/" in left_out() else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run."""
    out = [item for item in items if item.nodeid.startswith(tuple(left_out()))]
    config.hook.pytest_deselected(items=out)
    items[:] = [item for item in items if item not in out]


def _asked_by_a_test() -> bool:
    """Whether the method that calls this was called by a test, through torch at most."""
    frame = sys._getframe(2)
    while f"{os.sep}torch{os.sep}" in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
    return f"{os.sep}tests{os.sep}" in frame.f_code.co_filename


def _moved(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def wrapped(self: Any, *given: Any, **named: Any) -> Any:
        if not _asked_by_a_test():
            return method(self, *given, **named)

        def there(value: Any) -> Any:
            return value.to(self.device) if isinstance(value, torch.Tensor) else value

        out = method(self, *map(there, given), **{name: there(value) for name, value in named.items()})
        return out.cpu() if isinstance(out, torch.Tensor) else out

    return wrapped


def _patch() -> None:
    init_model, load_policy, pick_device = folder.init_model, folder.load_policy, options.pick_device
    folder.init_model = lambda *a, **k: realise(init_model(*a, **k), torch.float32, torch.device(DEVICE))
    folder.load_policy = lambda path, device=DEVICE, *a, **k: load_policy(path, device, *a, **k)
    options.pick_device = lambda name: DEVICE if name == "cpu" else pick_device(name)
    for cls in (model.CausalLM, model.LanguageModel, hf.TransformersLM):
        for name in ("hidden", "logits", "step", "forward"):
            if name in cls.__dict__:
                setattr(cls, name, _moved(cls.__dict__[name]))


_patch()
