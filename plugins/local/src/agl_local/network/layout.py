"""Where each parameter of a network lies in one block of memory. A block is a whole safetensors file
(https://huggingface.co/docs/safetensors): the length of a header, the header in JSON, the tensors.

Invariant: matrices that a step multiplies at once (q, k and v; gate and up) lie one after the other, so that
their joint matrix is a view of the block and needs no memory of its own.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_CODES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_PREFIX = 8
"""Bytes of the header's length."""
_ALIGN = 64
"""Tensors begin at a multiple of this many bytes, as those that torch allocates: a cache line."""

M = TypeVar("M", bound=nn.Module)


class Layout:
    """The block of tensors of these ``shapes``, all of type ``dtype``; ``size`` is its length in bytes."""

    def __init__(self, shapes: Mapping[str, Sequence[int]], dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._places: dict[str, tuple[int, torch.Size]] = {}
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in _in_order(shapes):
            shape = torch.Size(shapes[name])
            start, end = end, end + math.prod(shape) * dtype.itemsize
            self._places[name] = (start, shape)
            header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(_PREFIX + len(text)) % _ALIGN)
        self._header = len(text).to_bytes(_PREFIX, "little") + text
        self.size = len(self._header) + end

    def views(self, block: Tensor) -> dict[str, Tensor]:
        """The tensors by name, as views of ``block`` [size], of type uint8."""
        return {
            name: _view(block, len(self._header) + start, shape, self.dtype)
            for name, (start, shape) in self._places.items()
        }

    def parts(self, tensors: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Header and ``tensors`` as they follow each other in a block: bytes on the CPU, of type uint8."""
        yield torch.frombuffer(bytearray(self._header), dtype=torch.uint8)
        for name in self._places:
            tensor = tensors[name].detach().to("cpu", self.dtype)
            yield tensor.contiguous().view(-1).view(torch.uint8)

    def fill(self, block: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Write the header and ``tensors`` (of any device and type) into ``block`` [size], of type uint8."""
        block[: len(self._header)] = torch.frombuffer(bytearray(self._header), dtype=torch.uint8)
        with torch.no_grad():
            for name, place in self.views(block).items():
                place.copy_(tensors[name])


def read_block(block: Tensor) -> dict[str, Tensor]:
    """The tensors of a block [size], of type uint8, by name, as views. Raises ValueError for other bytes."""
    begin = _PREFIX + int.from_bytes(bytes(block[:_PREFIX].tolist()), "little")
    if not _PREFIX < begin <= block.numel():
        raise ValueError(f"not safetensors ({block.numel()} bytes): the header would end at byte {begin}")
    try:
        header = json.loads(bytes(block[_PREFIX:begin].tolist()))
        header.pop("__metadata__", None)
        return {
            name: _view(block, begin + entry["data_offsets"][0], entry["shape"], _DTYPES[entry["dtype"]])
            for name, entry in header.items()
        }
    except (AttributeError, KeyError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"not safetensors ({block.numel()} bytes): {error!r}") from error


def realise(model: M, dtype: torch.dtype, device: torch.device) -> M:
    """A copy of ``model`` whose parameters lie in one block of their own, of type ``dtype`` on ``device``.

    Where ``model`` is on the meta device, the values are undefined.
    """
    parameters = dict(model.named_parameters())
    layout = Layout({name: p.shape for name, p in parameters.items()}, dtype)
    block = torch.empty(layout.size, dtype=torch.uint8, device=device)
    views = layout.views(block)
    known: dict[int, object] = {}
    with torch.no_grad():
        for name, parameter in parameters.items():
            if not parameter.is_meta:
                views[name].copy_(parameter)
            known[id(parameter)] = nn.Parameter(views[name], parameter.requires_grad)
    return copy.deepcopy(model, known)


def adjacent(parts: Sequence[Tensor]) -> Tensor | None:
    """The joint matrix of ``parts`` [rows, ...] as a view; None where they do not lie one after the other."""
    first = parts[0].detach()
    storage, end = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in parts:
        if part.data_ptr() != end or not part.is_contiguous() or part.untyped_storage().data_ptr() != storage:
            return None
        end += part.nbytes
    return first.as_strided((sum(part.shape[0] for part in parts), *first.shape[1:]), first.stride())


def join(parameters: Sequence[Tensor]) -> Tensor:
    """The joint matrix of ``parameters``, which are views of it from now on. Nothing moves where they lie
    one after the other already.
    """
    found = adjacent(parameters)
    if found is None:
        found = torch.cat([parameter.detach() for parameter in parameters])
        parts = torch.split(found, [parameter.shape[0] for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.data = part
    return found


def _view(block: Tensor, start: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return block[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(torch.Size(shape))


def _in_order(names: Iterable[str]) -> list[str]:
    """``names`` with those of a group one after the other, at the place of the first."""
    left = dict.fromkeys(names)
    found: list[str] = []
    for name in list(left):
        if name in left:
            for mate in _mates(name):
                if mate in left:
                    del left[mate]
                    found.append(mate)
    return found


def _mates(name: str) -> list[str]:
    """The names of the group that ``name`` belongs to, in the group's order."""
    head, _, kind = name.rpartition(".")
    parent, dot, module = head.rpartition(".")
    for group in _TOGETHER:
        if module in group:
            return [f"{parent}{dot}{mate}.{kind}" for mate in group]
    return [name]
