"""A policy on disk and in memory, its checkpoints and export; fetching and converting pretrained models.

Names are imported lazily (PEP 562): fetching a model loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agl_local.policy.folder import DTYPES, Policy, init_model, load_policy, save_policy
    from agl_local.policy.weights import StateError

__all__ = ["DTYPES", "Policy", "StateError", "init_model", "load_policy", "save_policy"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("agl_local.policy.folder"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
