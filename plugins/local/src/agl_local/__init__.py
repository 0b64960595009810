"""The embedded engine and driver: serve and train a small policy with plain torch, on a laptop's CPU or one
GPU.

Names are imported lazily (PEP 562): ``import agl_local`` loads no torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

# Where another process takes a core, OpenMP threads that wait busily for one another take turns with it:
# an update of 0.12 s then took 5 s (2 cores, measured); where they wait asleep, it took 0.15 s. OpenMP reads
# this when torch is loaded; who has set it, or has loaded torch before, keeps what is there.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_EXPORTS = {
    "ModelConfig": "network.config",
    "CausalLM": "network.model",
    "Policy": "policy.folder",
    "load_policy": "policy.folder",
    "state": "policy.folder",
    "save_policy": "policy.folder",
    "init_model": "policy.folder",
    "ChatTokenizer": "text.tokenizer",
    "parse_calls": "text.tools",
    "Sampling": "network.sampling",
    "Engine": "generation.engine",
    "Request": "generation.request",
    "Completion": "generation.request",
    "create_app": "http.app",
    "EngineProcess": "http.process",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
