"""The matrices of LoRA on disk, in the format of PEFT: what ``peft`` and vLLM load beside the base model.

Invariant: what is loaded equals what was saved, bit for bit, and belongs to the same layers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from agl_local.network.lora import adapted, matrices, peft_config
from agl_local.network.model import LanguageModel
from agl_local.policy.folder import StateError

_WEIGHTS = "adapter_model.safetensors"


def save_adapters(model: LanguageModel, folder: Path) -> None:
    """Write the matrices of ``model`` to the new ``folder``; nothing where it has none."""
    if layers := adapted(model):
        folder.mkdir(parents=True)
        text = json.dumps(peft_config(layers), indent=2) + "\n"
        (folder / "adapter_config.json").write_text(text, encoding="utf-8")
        save_file({name: matrix.cpu() for name, matrix in matrices(layers).items()}, folder / _WEIGHTS)
        # It is written for its owner alone.
        shutil.copymode(folder / "adapter_config.json", folder / _WEIGHTS)


def load_adapters(model: LanguageModel, folder: Path) -> None:
    """Copy the matrices in ``folder`` into ``model``. Raises StateError before anything is changed if they
    are those of other layers.
    """
    mine = matrices(adapted(model))
    try:
        saved = load_file(folder / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise StateError(f"{folder} holds no adapters: {error}") from error
    if {name: matrix.shape for name, matrix in saved.items()} != {n: m.shape for n, m in mine.items()}:
        raise StateError(f"the adapters in {folder} are those of other layers or of another rank")
    with torch.no_grad():
        for name, matrix in mine.items():
            matrix.copy_(saved[name])
