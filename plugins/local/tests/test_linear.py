"""Linear layers whose backward pass multiplies in bfloat16: the forward pass keeps its bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agentlightning.types import Recipe
from agl_local.network.linear import Linear, fast_bfloat16, pick_backward_dtype, set_backward_dtype
from agl_local.network.lora import Lora, adapt
from agl_local.options import Options, read_options
from agl_local.training.update import Updater
from plugins.local.tests.driver_fixtures import gradients, make_row, relative, tiny_model

ROUNDED = torch.bfloat16


def layer(bias: bool = True) -> Linear:
    torch.manual_seed(3)
    return Linear(12, 7, bias=bias)


def gradients_of(one: Linear, x: torch.Tensor) -> list[torch.Tensor]:
    one.zero_grad()
    x = x.clone().requires_grad_()
    (one(x).square().sum() / 2).backward()
    assert x.grad is not None
    return [x.grad, *(p.grad for p in one.parameters() if p.grad is not None)]


@pytest.mark.parametrize("shape", [(12,), (5, 12), (2, 5, 12)])
def test_the_forward_pass_keeps_its_bits_and_gradients_are_products_of_rounded_operands(
    shape: tuple[int, ...],
) -> None:
    one, x = layer(), torch.randn(shape, generator=torch.Generator().manual_seed(1))
    plain, exact = one(x), gradients_of(one, x)
    assert set_backward_dtype(one, ROUNDED) == 1
    assert torch.equal(one(x), plain)
    of_x, of_weight, of_bias = gradients_of(one, x)

    low, flat = plain.to(ROUNDED).double(), x.to(ROUNDED).double().reshape(-1, 12)
    assert torch.allclose(of_x.double(), low @ one.weight.to(ROUNDED).double(), rtol=2**-7, atol=1e-2)
    assert torch.allclose(of_weight.double(), low.reshape(-1, 7).T @ flat, rtol=2**-7, atol=1e-2)
    assert torch.equal(of_bias, exact[2])
    assert all(g.dtype == torch.float32 for g in (of_x, of_weight, of_bias))


def test_a_frozen_weight_gets_no_gradient_and_passes_one_on() -> None:
    one = layer(bias=False)
    one.requires_grad_(False)
    set_backward_dtype(one, ROUNDED)
    (of_x,) = gradients_of(one, torch.ones(3, 12))
    assert one.weight.grad is None and of_x.abs().sum() > 0


def test_the_gradient_of_an_update_differs_by_the_rounding_and_logprobs_do_not() -> None:
    found: dict[str, tuple[torch.Tensor, float]] = {}
    for name, dtype in (("exact", None), ("rounded", ROUNDED)):
        model = tiny_model()
        rows = [make_row(model, [3, 1, 4, 1, 5, 9, 2, 6], [(2, 8)], [1.0], name="r", weight=0.1)]
        updater = Updater(model, Recipe(name="r"), lr=1e-12, clip_norm=None, backward_dtype=dtype)
        updater.optimizer.zero_grad = lambda set_to_none=True: None  # type: ignore[method-assign]
        metrics = updater.update(rows, version=0)
        found[name] = gradients(model), metrics["logprob_gap_max"]
    assert found["exact"][1] == found["rounded"][1] < 1e-5
    assert 0 < relative(found["rounded"][0], found["exact"][0]) < 0.02


def test_adapters_multiply_beside_rounded_products() -> None:
    model = tiny_model()
    adapt(model, Lora(rank=2), seed=0)
    assert set_backward_dtype(model, ROUNDED) > 0
    model(torch.tensor([[1, 2, 3]])).sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "lora_" in name)


def test_auto_asks_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    for flags, dtype in (({}, None), ({"avx512_bf16": True}, ROUNDED), ({"amx_bf16": True}, ROUNDED)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=flags: found)
        assert pick_backward_dtype("auto", model) is dtype
        assert fast_bfloat16("cpu") is (dtype is not None)
    assert pick_backward_dtype("auto", nn.Linear(2, 2)) is None  # not our layers
    assert pick_backward_dtype("bfloat16", model) is ROUNDED
    assert pick_backward_dtype("float32", model) is None
    assert not fast_bfloat16("mps")


def test_where_it_is_refused() -> None:
    assert Options().backward_dtype == "float32"
    with pytest.raises(ValueError, match="deterministic needs backward_dtype float32, got auto"):
        read_options({"deterministic": True, "backward_dtype": "auto"})
    with pytest.raises(ValueError, match="backward_dtype"):
        read_options({"backward_dtype": "float16"})
