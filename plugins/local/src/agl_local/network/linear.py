"""Linear layers whose backward pass may multiply in another precision than the forward pass.

A backward pass has two products for each of the forward pass, and nothing is read from it but gradients. Its
operands may be rounded to bfloat16, whose products take half the time on processors with instructions for
them. Invariant: the forward pass is ``nn.Linear``'s, to rounding (``product`` says which library computes
it), and the same bits whatever ``backward_dtype`` is; gradients are summed in float32 over micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from agl_local.network.product import Matrix, faster, product
from agl_local.network.quantized import Kind, Quantized, quantized_product

_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


class Linear(nn.Linear):
    """``nn.Linear`` with ``backward_dtype``: to what the operands of the backward pass are rounded (``None``:
    they stay as they are).
    """

    backward_dtype: torch.dtype | None = None
    packed: Matrix | None = None
    quantized: Quantized | None = None
    """What stands in the place of the weight where that is quantised, and so never trained."""

    @property
    def bare(self) -> bool:
        """Whether the layer is its weight and bias, and nothing else."""
        return self.quantized is None

    @property
    def device(self) -> torch.device:
        return self.weight.device if self.quantized is None else self.quantized.device

    def merged(self) -> Tensor:
        """The matrix that the layer computes with, in float32 where it is quantised."""
        return self.weight.detach() if self.quantized is None else self.frozen(torch.float32)

    def beside(self, x: Tensor) -> Tensor | None:
        """What the layer adds to the product of ``x`` [..., in] with its frozen matrix: [..., out], if it has
        more than that.
        """
        return None

    def frozen(self, dtype: torch.dtype) -> Tensor:
        """The matrix [out, in] in ``dtype``, without a gradient; what is beside it is left out."""
        return self.weight.detach().to(dtype) if self.quantized is None else self.quantized.matrix(dtype)

    def _share(self, other: nn.Linear) -> None:
        """Become a layer over the weight and bias of ``other``."""
        self.in_features, self.out_features = other.in_features, other.out_features
        for name in ("weight", "bias"):
            self.register_parameter(name, other._parameters[name])
        if isinstance(other, Linear):
            self.quantized, self.packed = other.quantized, other.packed

    def reset_parameters(self) -> None:
        """Fill the weight, unless it has no memory: to do that, torch loads its compiler."""
        if not self.weight.is_meta:
            super().reset_parameters()

    def pack(self) -> None:
        """Prepare for products without gradients, as the weight is now."""
        self.packed = Matrix(self.weight, self.bias) if self.quantized is None else None

    def quantize(self, kind: Kind) -> None:
        """Keep ``weight`` in ``kind`` alone; a bias stays as it is."""
        self.quantized, self.packed = Quantized.of(self.weight, kind), None
        self.register_parameter("weight", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.quantized is not None:
            return quantized_product(x, self.quantized, self.bias, self.backward_dtype)
        # Parameters that got other memory since (a deep copy, another type) are no longer what was packed.
        if self.packed is not None and not torch.is_grad_enabled() and self.packed.of(self.weight):
            return self.packed(x)
        return linear(x, self.weight, self.bias, self.backward_dtype)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, backward_dtype: torch.dtype | None = None
) -> Tensor:
    """A differentiable ``product``."""
    if not torch.is_grad_enabled():
        return product(x, weight, bias)
    if backward_dtype is None and not faster(x, weight):
        return F.linear(x, weight, bias)
    out: Tensor = _Product.apply(x, weight, bias, backward_dtype or x.dtype)  # type: ignore[no-untyped-call]
    return out


def add_beside(out: Tensor, x: Tensor, parts: Sequence[Linear]) -> Tensor:
    """``out`` [..., sum of outputs], the products of ``x`` with the matrices of ``parts`` side by side; what
    the layers have beside these is added in place.
    """
    start = 0
    for part in parts:
        end = start + part.out_features
        if (more := part.beside(x)) is not None:
            out[..., start:end] += more
        start = end
    return out


def set_backward_dtype(model: nn.Module, dtype: torch.dtype | None) -> int:
    """Let all linear layers of ``model`` multiply in ``dtype`` in the backward pass; return their number."""
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    for layer in layers:
        layer.backward_dtype = dtype
    return len(layers)


def pick_backward_dtype(asked: str, model: nn.Module) -> torch.dtype | None:
    """What the option ``backward_dtype`` means for ``model``: None for float32. ``auto``: bfloat16 where the
    model has our layers, all on a device that multiplies it fast.
    """
    if asked == "auto":
        devices = {module.device.type for module in model.modules() if isinstance(module, Linear)}
        asked = "bfloat16" if devices and all(map(fast_bfloat16, devices)) else "float32"
    return torch.bfloat16 if asked == "bfloat16" else None


def fast_bfloat16(device: str) -> bool:
    """Whether ``device`` multiplies bfloat16 at least as fast as float32. On a CPU: whether it has
    instructions for it (AVX512-BF16 or AMX-BF16).
    """
    if device == "cpu":
        known = torch.cpu.get_capabilities()
        return any(known.get(name, False) for name in _INSTRUCTIONS)
    return device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.dtype = dtype
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        low = grad.to(ctx.dtype)
        of_x = of_weight = of_bias = None
        if ctx.needs_input_grad[0]:
            of_x = product(low, weight.to(ctx.dtype).t()).to(x.dtype)
        if ctx.needs_input_grad[1]:
            rows = x.reshape(-1, x.shape[-1]).to(ctx.dtype)
            of_weight = product(low.reshape(-1, low.shape[-1]).t(), rows.t()).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = grad.reshape(-1, grad.shape[-1]).sum(0)
        return of_x, of_weight, of_bias, None
