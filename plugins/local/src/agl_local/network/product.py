"""Products with a weight matrix, on x86 processors by oneDNN where matrices are large.

torch multiplies float32 matrices by MKL, whose widest instructions on processors of other makers than Intel
are AVX2; oneDNN, which torch ships too, uses AVX-512 wherever it is. On a recent EPYC it is two to three
times as fast; on Intel's processors we have not compared the two. A call of it costs more than one of MKL, so
small products stay there. Invariant: a product is ``F.linear``'s to rounding, and its library depends on the
machine and on shapes alone.

The operators are those that torch's compiler emits for linear layers: torch/_inductor/mkldnn_lowerings.py.
"""

from __future__ import annotations

import functools
import os
import platform

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LARGE = 2**18
"""Elements of a matrix from which oneDNN is faster whatever the number of rows."""
_WORTH = 2**21
"""Multiplications from which it is with a smaller matrix."""
_SHAPES = "64"
"""Shapes whose compiled code is kept: those of a pass through the network, forward and backward."""
_ROWS = 64
"""Rows for which a blocked matrix is laid out; the layout serves fewer and more as well."""


@functools.cache
def available() -> bool:
    """Whether this build of torch has oneDNN and its operators, and the processor is of the x86 family. The
    first call bounds what the library keeps, unless the environment says how much.
    """
    mkldnn = torch.ops.mkldnn
    known = hasattr(mkldnn, "_linear_pointwise") and hasattr(mkldnn, "_reorder_linear_weight")
    # oneDNN and torch keep compiled code for each of 1,024 shapes, 2 MB each for ours, and batches of prompts
    # hardly ever have the shape of one before. Both read these names at the first product of a process.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _SHAPES)
    os.environ.setdefault("LRU_CACHE_CAPACITY", _SHAPES)
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return known and x86 and bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x`` [..., K] times the transpose of ``weight`` [N, K], plus ``bias`` [N]. No gradient goes
    through it: that is what ``linear.linear`` is for.
    """
    return _onednn(x, weight, bias) if faster(x, weight) else F.linear(x, weight, bias)


def faster(x: Tensor, weight: Tensor) -> bool:
    """Whether ``product`` takes oneDNN for these."""
    worth = weight.numel() >= _LARGE or x.numel() * weight.shape[0] >= _WORTH
    return worth and x.dim() > 1 and x.numel() > 0 and x.dtype == weight.dtype and _serves(weight)


def products(x: Tensor, y: Tensor) -> Tensor:
    """``x`` [B, M, K] times the transposes of ``y`` [B, N, K]: [B, M, N]. No gradient goes through it."""
    if not len(x) or not faster(x[0], y[0]):
        return torch.bmm(x, y.transpose(1, 2))
    return torch.stack([_onednn(one, other, None) for one, other in zip(x, y, strict=True)])


class Matrix:
    """``weight`` [N, K] and ``bias`` [N] as serving reads them again and again: a large one in blocks as
    oneDNN multiplies it, which is a copy, made by the first product; others as they are. It knows nothing of
    later changes.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self._blocked: Tensor | None = None
        self._large = weight.numel() >= _LARGE and _serves(weight)

    def of(self, first: Tensor) -> bool:
        """Whether this is the matrix that begins with the rows of ``first``, at the same place in memory."""
        return self.weight.data_ptr() == first.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        """``product`` of ``x`` [..., K]."""
        if not self._large or x.dim() < 2 or not x.numel():
            return product(x, self.weight, self.bias)
        blocked = self._blocked  # another thread may free it meanwhile
        if blocked is None:
            blocked = self._blocked = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach(), _ROWS)
        return _onednn(x, blocked, self.bias)

    def free_blocks(self) -> None:
        """Free the copy in blocks; the next product makes it anew. From any thread."""
        self._blocked = None

    def part(self, x: Tensor, at: slice) -> Tensor:
        """``product`` of ``x`` with rows ``at`` alone."""
        return product(x, self.weight[at], None if self.bias is None else self.bias[at])


def free_blocks(model: nn.Module) -> None:
    """Free the copies in blocks of all matrices that the modules of ``model`` have ``packed``."""
    for module in model.modules():
        if isinstance(matrix := getattr(module, "packed", None), Matrix):
            matrix.free_blocks()


def _serves(weight: Tensor) -> bool:
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and available()


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    weight = weight if weight.is_mkldnn else _dense(weight)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(_dense(x), weight, bias, "none", [], "")
    return out


def _dense(x: Tensor) -> Tensor:
    """``x``, copied if there are gaps between its rows or columns in memory: oneDNN multiplies such a matrix
    by its reference implementation, which is a thousand times slower.
    """
    if x.is_contiguous() or (x.dim() == 2 and x.t().is_contiguous()):
        return x
    return x.contiguous()
