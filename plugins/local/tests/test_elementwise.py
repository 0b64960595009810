"""Norm and gate with a backward pass of their own: plain autograd's gradients, and less is kept."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from agl_local.network.elementwise import rms_norm, swiglu


def test_the_norm_is_the_plain_one() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, dtype=torch.float64, requires_grad=True)
    assert torch.equal(rms_norm(x, weight, 1e-5), F.rms_norm(x, (8,), weight, 1e-5))
    assert torch.autograd.gradcheck(lambda *inputs: rms_norm(*inputs, 1e-5), (x, weight))
    with torch.no_grad():
        assert torch.equal(rms_norm(x, weight, 1e-5), F.rms_norm(x, (8,), weight, 1e-5))


def test_a_frozen_weight_and_a_frozen_input() -> None:
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    for frozen, other in ((weight, x), (x, weight)):
        frozen.requires_grad_(False)
        rms_norm(x, weight, 1e-5).sum().backward()  # type: ignore[no-untyped-call]
        assert frozen.grad is None and other.grad is not None
        frozen.requires_grad_(True)
        other.grad = None


def test_the_gate_is_the_plain_one_bit_for_bit() -> None:
    torch.manual_seed(0)
    gate, up = torch.randn(2, 6, 9, requires_grad=True), torch.randn(2, 6, 9, requires_grad=True)
    grad = torch.randn(2, 6, 9)
    plain, own = F.silu(gate) * up, swiglu(gate, up)
    assert torch.equal(plain, own)
    wanted = torch.autograd.grad(plain, (gate, up), grad)
    found = torch.autograd.grad(own, (gate, up), grad)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
