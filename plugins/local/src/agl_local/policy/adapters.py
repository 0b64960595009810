"""The matrices of LoRA on disk, in the format of PEFT: what ``peft`` and vLLM load beside the base model.

Invariant: what is loaded equals what was saved, bit for bit, and belongs to the same layers.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from agl_local.network.config import ADAPTER, ConfigError, read_json
from agl_local.network.lora import LoraError, adapt, adapted, lora_of, matrices, peft_config
from agl_local.network.model import LanguageModel
from agl_local.network.quantized import Kind
from agl_local.policy.folder import Policy
from agl_local.policy.weights import StateError, not_finite

_WEIGHTS = "adapter_model.safetensors"
FILES = frozenset({ADAPTER, _WEIGHTS})
_BASE_SHA256 = "base_sha256"
_BASE_KIND = "base_quantized"
_LOG = logging.getLogger(__name__)


def save_adapters(
    model: LanguageModel,
    folder: Path,
    dtype: torch.dtype | None = None,
    about: Mapping[str, Any] | None = None,
    base_sha256: str = "",
) -> None:
    """Write the matrices of ``model`` to ``folder``; nothing where it has none.

    ``dtype``: the precision that they are rounded to; default: their own. ``about``: further keys of the
    configuration. ``base_sha256``: fingerprint of the weights beside which they belong, as they are before
    they are quantised.
    """
    if layers := adapted(model):
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**peft_config(layers), **(about or {})}, indent=2) + "\n"
        (folder / ADAPTER).write_text(text, encoding="utf-8")
        tensors = {name: matrix.cpu().to(dtype or matrix.dtype) for name, matrix in matrices(layers).items()}
        facts = {_BASE_SHA256: base_sha256, _BASE_KIND: model.base_kind or ""}
        facts = {name: value for name, value in facts.items() if value}
        save_file(tensors, folder / _WEIGHTS, metadata=facts or None)
        # It is written for its owner alone.
        shutil.copymode(folder / ADAPTER, folder / _WEIGHTS)


def load_adapters(model: LanguageModel, folder: Path) -> None:
    """Copy the matrices in ``folder`` into ``model``. Raises StateError before anything is changed if they
    are those of other layers, or hold numbers that are not finite.
    """
    mine = matrices(adapted(model))
    try:
        saved = load_file(folder / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise StateError(f"{folder} holds no adapters: {error}") from error
    if {name: matrix.shape for name, matrix in saved.items()} != {n: m.shape for n, m in mine.items()}:
        raise StateError(f"the adapters in {folder} are those of other layers or of another rank")
    if wrong := not_finite(saved):
        raise StateError(f"{folder / _WEIGHTS}: {wrong}")
    with torch.no_grad():
        for name, matrix in mine.items():
            matrix.copy_(saved[name])


def base_of(folder: Path) -> str:
    """Return what the adapter in ``folder`` says that it belongs to: a model's name or folder. Raises
    StateError if it says nothing.
    """
    base = _settings(folder).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise StateError(f"{folder / ADAPTER} names no model: base_model_name_or_path is {base!r}")
    return base


def add_adapter(policy: Policy, folder: Path, digest: str) -> None:
    """Put the adapter in ``folder`` beside the weights of ``policy``.

    ``digest``: the fingerprint of these weights in float32, not quantised. Raises LoraError or StateError for
    an adapter that does not fit, and StateError for one that was trained beside other weights; says where
    they were quantised otherwise.
    """
    config, (facts, targets) = _settings(folder), _written(folder)
    wanted, kind, mine = facts.get(_BASE_SHA256, ""), facts.get(_BASE_KIND), policy.model.base_kind
    if config.get("target_modules") is None:  # its writer leaves it to the matrices
        config["target_modules"] = targets
    try:
        lora = lora_of(config)
    except LoraError as error:
        raise LoraError(f"{folder / ADAPTER}: {error}") from None
    if wanted and wanted != digest:
        raise StateError(
            f"the adapter in {folder} was trained beside weights with the sha256 {wanted[:12]}…; those of "
            f"{policy.path} have {digest[:12]}…"
        )
    if kind != mine:
        _LOG.warning(
            "the adapter in %s was trained over a base %s; over one %s it makes another policy",
            folder,
            *(f"in {one}" if one else "that is not quantised" for one in (kind, mine)),
        )
    adapt(policy.model, lora, seed=0)
    load_adapters(policy.model, folder)


def base_kind(folder: Path) -> Kind | None:
    """In what the matrices were that the adapter in ``folder`` was trained over; None: not quantised."""
    kind = _written(folder)[0].get(_BASE_KIND)
    if kind is not None and kind not in get_args(Kind):
        raise StateError(
            f"the adapter in {folder} was trained over a base in {kind}, which is not known here"
        )
    return cast("Kind | None", kind)


def _settings(folder: Path) -> dict[str, Any]:
    """Return what an adapter's configuration says. Raises StateError for a file that says nothing."""
    try:
        return read_json(folder / ADAPTER)
    except ConfigError as error:
        raise StateError(str(error)) from None


def _written(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return what an adapter's file says of the weights that it was trained beside, and the names of the
    linear layers that it has matrices of. Raises StateError without the file.
    """
    if not (folder / _WEIGHTS).is_file():
        raise StateError(f"{folder / _WEIGHTS}: there is no such file; an adapter has its matrices in it")
    try:
        with safe_open(folder / _WEIGHTS, framework="pt") as content:
            names = content.keys()
            layers = {name.partition(".lora_")[0].rpartition(".")[2] for name in names}
            return dict(content.metadata() or {}), sorted(layers)
    except (OSError, SafetensorError) as error:
        raise StateError(f"{folder} holds no adapters: {error}") from error
