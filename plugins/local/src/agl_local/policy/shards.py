"""The weights of a checkpoint in two files: those that training leaves as they are, and the others.

Checkpoints of a run share the first file (a hard link), where the file system can. Invariant: the file holds
exactly the weights that are in memory; one that differs in a bit is not shared but written anew.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from agl_local.policy.folder import Policy, constant, save_description, save_policy, state, write_tensors

CONSTANT = "model-00001-of-00002.safetensors"
_CHANGING = "model-00002-of-00002.safetensors"


def save_shared(policy: Policy, folder: Path, before: Path | None) -> None:
    """Write ``policy`` to ``folder`` in Hugging Face layout. What is constant is that of the policy folder
    ``before``, if that has it.
    """
    names = constant(policy.model)
    if not names:
        save_policy(policy, folder)
        return
    save_description(policy, folder)
    tensors = state(policy.model)
    kept = {name: tensors[name] for name in tensors if name in names}
    if before is None or not _linked(before / CONSTANT, folder / CONSTANT, kept):
        write_tensors(kept, folder / CONSTANT)
    changing = {name: tensors[name] for name in tensors if name not in names}
    write_tensors(changing, folder / _CHANGING)
    places = {name: CONSTANT if name in names else _CHANGING for name in tensors}
    size = sum(tensor.nbytes for part in (kept, changing) for tensor in part.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    text = json.dumps(index, indent=2) + "\n"
    (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def _linked(old: Path, new: Path, tensors: Mapping[str, Tensor]) -> bool:
    """Give the file ``old`` the second name ``new`` if it holds exactly ``tensors``."""
    if not old.is_file() or not _holds(old, tensors):
        return False
    try:
        os.link(old, new)
    except OSError:  # a file system without hard links, or the most links that a file can have
        return False
    return True


def _holds(file: Path, tensors: Mapping[str, Tensor]) -> bool:
    with safe_open(file, framework="pt") as content:
        return set(content.keys()) == set(tensors) and all(
            torch.equal(_bits(content.get_tensor(name)), _bits(tensor.cpu()))
            for name, tensor in tensors.items()
        )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
