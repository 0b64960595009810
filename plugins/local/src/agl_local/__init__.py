"""The embedded engine and driver: serve and train a small policy with plain torch, on a laptop's CPU or one
GPU.

Names are imported lazily (PEP 562): ``import agl_local`` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_EXPORTS = {
    "ModelConfig": "config",
    "CausalLM": "model",
    "Policy": "policy",
    "load_policy": "policy",
    "save_policy": "policy",
    "init_model": "policy",
    "ChatTokenizer": "tokenizer",
    "parse_hermes": "tools",
    "Sampling": "sampling",
    "Engine": "engine",
    "Request": "engine",
    "Completion": "engine",
    "create_app": "server",
    "EngineProcess": "process",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
