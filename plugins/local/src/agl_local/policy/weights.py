"""The weight files of a model folder: which they are, what they say of themselves, and one tensor at a time.

Invariant: what a header can tell is asked before a tensor is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentlightning.types import UsageError
from agl_local.network.config import ConfigError, MissingFile, read_json

State = Mapping[str, Tensor]
_FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of numbers that are read as they are; others are codes, which only their quantiser understands."""
_SHOWN = 3
"""Tensors of a kind that a message names; it counts the others."""
_PORTION = 64 * 2**20
"""Bytes of a weights file that are in memory while it is read."""


class StateError(UsageError, ValueError):
    """Weights that do not fit the network: which names are missing, unknown or of another shape."""


def weight_files(path: Path) -> list[Path]:
    """The weight files of the model folder ``path``, as its index names them. Raises ConfigError."""
    index = path / "model.safetensors.index.json"
    if not index.exists():
        return [path / "model.safetensors"]
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ConfigError(f"{index}: its weight_map does not give each tensor the name of a file")
    files = [path / name for name in sorted(set(places.values()))]
    if any(file.parent != path for file in files):
        raise ConfigError(f"{index}: names files outside its own folder")
    return files


def stored_shapes(files: Sequence[Path]) -> dict[str, list[int]]:
    """The shapes of the tensors in ``files``, by name. Raises MissingFile, or StateError for a tensor whose
    numbers are no floats.
    """
    found: dict[str, list[int]] = {}
    for file in files:
        with opened(file) as content:
            for name in content.keys():  # noqa: SIM118 - a handle of safetensors, no mapping
                tensor = content.get_slice(name)
                if tensor.get_dtype() not in _FLOATS:
                    raise StateError(
                        f"{file}: {name} is stored as {tensor.get_dtype()}; weights are read as "
                        f"{', '.join(_FLOATS)}, not quantised in their files"
                    )
                found[name] = tensor.get_shape()
    return found


def tensor_of(files: Sequence[Path], name: str) -> Tensor:
    """The tensor ``name`` of that one of ``files`` that has it."""
    for file in files:
        with opened(file) as content:
            if name in content.keys():  # noqa: SIM118 - a handle of safetensors, no mapping
                found: Tensor = content.get_tensor(name)
                return found
    raise StateError(f"none of {[str(file) for file in files]} has {name}")


def portions(file: Path) -> Iterator[list[str]]:
    """Names of the tensors of ``file`` in their order there, about ``_PORTION`` bytes at a time."""
    with opened(file) as content:
        names = list(content.offset_keys())
        sizes = [math.prod(content.get_slice(name).get_shape()) * 4 for name in names]
    portion: list[str] = []
    size = 0
    for name, more in zip(names, sizes, strict=True):
        if portion and size + more > _PORTION:
            yield portion
            portion, size = [], 0
        portion.append(name)
        size += more
    yield portion


def opened(file: Path) -> Any:
    """``safe_open``; raises MissingFile, or StateError for what is no safetensors."""
    if not file.exists():
        raise MissingFile(f"{file}: no such weights file (only safetensors are read)")
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise StateError(f"{file}: not safetensors: {error}") from error


def stored_state(path: Path) -> State:
    """The tensors of the model folder ``path``, each read in float32 when it is asked for; a tied output
    layer is left out. Raises MissingFile, or StateError, also for such a layer that is another matrix.
    """
    found: dict[str, Path] = {}
    for file in weight_files(path):
        with opened(file) as content:
            found.update(dict.fromkeys(content.keys(), file))
    tied = read_json(path / "config.json").get("tie_word_embeddings", False)
    if tied and {"lm_head.weight", "model.embed_tokens.weight"} <= found.keys():
        tensors = _Stored(found)
        refuse_untied(
            tensors["lm_head.weight"], tensors["model.embed_tokens.weight"], f"the weights of {path}"
        )
        del found["lm_head.weight"]
    return _Stored(found)


class _Stored(Mapping[str, Tensor]):
    """The tensors of ``files`` by name, each read in float32 when it is asked for."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> Tensor:
        return tensor_of([self._files[name]], name).float()

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def refuse_misfit(own: Mapping[str, torch.Size], shapes: Mapping[str, Sequence[int]], where: str) -> None:
    """Raise StateError unless tensors of these ``shapes`` are those of a network with ``own``."""
    # Some tied models are saved with their output layer all the same: an equal copy is no contradiction.
    tied = {"lm_head.weight"} - own.keys() if "model.embed_tokens.weight" in own else set()
    missing = [f"missing {name}" for name in own if name not in shapes]
    unknown = [f"unknown {name}" for name in shapes if name not in own and name not in tied]
    others = [
        f"{name} is {tuple(shapes[name])}, not {tuple(mine)}"
        for name, mine in own.items()
        if name in shapes and torch.Size(shapes[name]) != mine
    ]
    if problems := [_first(kind) for kind in (missing, unknown, others) if kind]:
        raise StateError(f"{where} do not fit the network: {'; '.join(problems)}")


def refuse_untied(output: Tensor, embedding: Tensor, where: str) -> None:
    """Raise StateError for an output layer that is no copy of the embedding it is tied to."""
    if not torch.equal(output, embedding):
        raise StateError(
            f"{where} do not fit the network: lm_head.weight differs from the embedding it is tied to "
            "(tie_word_embeddings)"
        )


def not_finite(tensors: State) -> str | None:
    """Say which of ``tensors`` hold numbers that are not finite: a network with one computes nothing."""
    names = [name for name in tensors if not torch.isfinite(tensors[name]).all()]
    return f"NaN or infinite numbers stand in {_first(names)}" if names else None


def _first(problems: Sequence[str]) -> str:
    more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    return "; ".join(problems[:_SHOWN]) + more
