"""Norm and gate that keep only their inputs for the backward pass and compute the cheap rest again.

Plain autograd keeps the scaled input of a norm and the SiLU of a gate as well, a quarter of what a layer
keeps. Invariant: values are those of the plain expressions bit for bit, gradients to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``F.rms_norm`` over the last dimension."""
    if not torch.is_grad_enabled():
        return F.rms_norm(x, (x.shape[-1],), weight, eps)
    out: Tensor = _RMSNorm.apply(x, weight, eps)  # type: ignore[no-untyped-call]
    return out


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up``."""
    if not torch.is_grad_enabled():
        return F.silu(gate) * up
    out: Tensor = _SwiGLU.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        scale = x.square().mean(-1, keepdim=True).add_(ctx.eps).rsqrt_()
        scaled = x * scale
        of_weight = (grad * scaled).flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        if not ctx.needs_input_grad[0]:
            return None, of_weight, None
        inner = grad * weight
        along = (inner * scaled).mean(-1, keepdim=True)
        return inner.sub_(scaled.mul_(along)).mul_(scale), of_weight, None


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        of_gate: Tensor = torch.ops.aten.silu_backward(grad * up, gate)
        return of_gate, F.silu(gate).mul_(grad)
