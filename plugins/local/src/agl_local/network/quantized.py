"""A matrix that is never trained in 8 or 4 bits a number, and products with it.

``int8``: whole numbers of -127 to 127, with one scale a row. ``nf4``: the nearest of 16 levels, the quantiles
of a normal distribution (QLoRA, arXiv:2305.14314), with one scale for 64 consecutive numbers. A scale is
float32, and the largest magnitude of what it scales is kept exactly. Each product makes the float matrix anew
and drops it; a backward pass does so again instead of keeping it. Invariants: the numbers depend on the
matrix alone, not on the device, because only operators that are rounded correctly make them; the float matrix
is the same in every product of one type, and in a smaller type that of float32, rounded once.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from agl_local.network.product import product

Kind = Literal["int8", "nf4"]
BLOCK = 64
"""Numbers of a matrix that share a scale in ``nf4``."""
LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""What four bits of ``nf4`` stand for, times their scale."""
_LARGEST = 127


class Quantized:
    """A matrix of ``shape`` [N, K]. It is never written, so copies of a network share it."""

    def __init__(self, kind: Kind, shape: torch.Size, codes: Tensor, scales: Tensor) -> None:
        self.kind, self.shape = kind, shape
        self.codes, self.scales = codes, scales

    @classmethod
    def of(cls, matrix: Tensor, kind: Kind) -> Quantized:
        """``matrix`` [N, K] in ``kind``, on its device."""
        exact = matrix.detach().float()
        return cls(kind, matrix.shape, *(_int8(exact) if kind == "int8" else _nf4(exact)))

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """The matrix that is computed with: new memory."""
        if self.kind == "int8":
            return self.codes.float().mul_(self.scales).to(dtype)
        # Two numbers at a time: the byte of their codes names the eight bytes of their levels.
        pairs = _pairs(self.codes.device).index_select(0, self.codes.int()).view(torch.float32)
        flat = pairs.view(-1, BLOCK).mul_(self.scales[:, None]).view(-1)
        return flat[: self.shape.numel()].view(self.shape).to(dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    @property
    def device(self) -> torch.device:
        return self.codes.device

    def __deepcopy__(self, memo: object) -> Quantized:
        return self


def quantized_product(
    x: Tensor, matrix: Quantized, bias: Tensor | None = None, backward_dtype: torch.dtype | None = None
) -> Tensor:
    """``x`` [..., K] times the transpose of ``matrix``, plus ``bias``. A gradient goes to ``x`` alone."""
    if not torch.is_grad_enabled():
        return product(x, matrix.matrix(x.dtype), bias)
    out: Tensor = _Product.apply(x, matrix, bias, backward_dtype or x.dtype)  # type: ignore[no-untyped-call]
    return out


class _Product(torch.autograd.Function):
    """Nothing is saved: the gradient of ``x`` needs the matrix, which is made from what is there anyway."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Quantized, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        ctx.matrix, ctx.dtype, ctx.given = matrix, dtype, x.dtype
        return product(x, matrix.matrix(x.dtype), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        matrix: Tensor = ctx.matrix.matrix(ctx.dtype)
        return product(grad.to(ctx.dtype), matrix.t()).to(ctx.given), None, None, None


def _int8(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [N, K] and scales [N, 1]."""
    scales = matrix.abs().amax(dim=1, keepdim=True).div_(_LARGEST)
    return (matrix / _divisors(scales)).round_().to(torch.int8), scales


def _nf4(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of two numbers a byte, the first in the upper half, and the scale of each block."""
    flat = F.pad(matrix.reshape(-1), (0, -matrix.numel() % BLOCK)).view(-1, BLOCK)
    scales = flat.abs().amax(dim=1)
    levels = torch.tensor(LEVELS, device=matrix.device)
    borders = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(flat / _divisors(scales[:, None]), borders, out_int32=True)
    upper, lower = codes.to(torch.uint8).view(-1, 2).unbind(1)
    return upper * 16 + lower, scales


def _divisors(scales: Tensor) -> Tensor:
    """``scales``, and 1 for what is nothing but zeros."""
    return torch.where(scales > 0, scales, 1.0)


_PAIRS: dict[torch.device, Tensor] = {}


def _pairs(device: torch.device) -> Tensor:
    """The levels of both halves of each byte [256]: eight bytes, read as one number."""
    if device not in _PAIRS:
        levels = torch.tensor(LEVELS)
        both = torch.stack((levels.repeat_interleave(16), levels.repeat(16)), dim=1)
        _PAIRS[device] = both.contiguous().view(torch.int64).view(-1).to(device)
    return _PAIRS[device]
