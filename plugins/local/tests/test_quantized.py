"""A frozen base in 8 and 4 bits: its numbers, its gradients, and what it takes."""

from __future__ import annotations

import copy
from itertools import pairwise
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from agl_local.network.linear import Linear, set_backward_dtype
from agl_local.network.lora import Lora, LoraLinear, adapted, starting_point
from agl_local.network.memory import quantized_bytes
from agl_local.network.model import CausalLM
from agl_local.network.quantized import BLOCK, LEVELS, Kind, Quantized
from plugins.local.tests.driver_fixtures import relative, tiny_model
from plugins.local.tests.test_lora import with_adapters

KINDS: list[Kind] = ["int8", "nf4"]
LORA = Lora(rank=4, alpha=8)


def by_formula(matrix: Tensor, kind: Kind) -> Tensor:
    """What ``kind`` keeps of ``matrix``, number by number."""
    out = matrix.clone()
    if kind == "int8":
        for row in out:
            scale = float(row.abs().max()) / 127
            for i, value in enumerate(row.tolist()):
                row[i] = round(value / scale) * scale if scale else 0.0
        return out
    flat = out.view(-1)
    for at in range(0, len(flat), 64):
        scale = float(flat[at : at + 64].abs().max())
        for i, value in enumerate(flat[at : at + 64].tolist(), at):
            flat[i] = min(LEVELS, key=lambda level: abs(value - level * scale)) * scale
    return out


def quantized_model(kind: Kind, lora: Lora | None = LORA, seed: int = 0) -> CausalLM:
    """A network in ``kind`` whose A and B are both far from 0."""
    if lora is not None:
        return with_adapters(seed, lora, kind)
    model = tiny_model()
    model.quantize(kind)
    return model


def test_the_levels_are_quantiles_of_a_normal_distribution() -> None:
    """As QLoRA's appendix derives them: eight above zero, seven below, zero itself, the largest at 1."""
    end = (2 - 1 / 32 - 1 / 30) / 2
    upper = [NormalDist().inv_cdf(end + (0.5 - end) * i / 8) for i in range(8)]
    lower = [-NormalDist().inv_cdf(end + (0.5 - end) * i / 7) for i in range(7)]
    known = sorted([*upper, 0.0, *lower])
    assert list(LEVELS) == pytest.approx([level / max(upper) for level in known], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3, 128), (5, 40), (2, 3)])
def test_the_numbers_are_those_of_the_formula(kind: Kind, shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    matrix[0] = 0.0
    found = Quantized.of(matrix, kind)
    assert (found.matrix(torch.float32) - by_formula(matrix, kind)).abs().max() < 1e-6
    assert torch.equal(found.matrix(torch.bfloat16), found.matrix(torch.float32).bfloat16())
    assert found.nbytes == quantized_bytes(kind, *shape)
    once = found.matrix(torch.float32)
    assert (Quantized.of(once, kind).matrix(torch.float32) - once).abs().max() < 1e-6
    assert not Quantized.of(torch.zeros(shape), kind).matrix(torch.float32).any()


def test_four_bits_keep_the_largest_of_a_block_and_err_by_half_a_step_at_most() -> None:
    matrix = torch.randn(8, BLOCK, generator=torch.Generator().manual_seed(2))
    found = Quantized.of(matrix, "nf4").matrix(torch.float32)
    top = matrix.abs().amax(1, keepdim=True)
    assert torch.equal(found.abs().amax(1, keepdim=True), top)
    widest = max(b - a for a, b in pairwise(LEVELS)) / 2
    assert ((found - matrix).abs() <= widest * top * 1.0001).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("backward", [None, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_the_matrix_that_is_computed_with(
    kind: Kind, backward: torch.dtype | None, bias: bool
) -> None:
    torch.manual_seed(3)
    base = Linear(96, 40, bias=bias).requires_grad_(False)
    base.quantize(kind)
    layer = LoraLinear(base, 4, 2.0, torch.Generator().manual_seed(0))
    torch.nn.init.normal_(layer.lora_B)
    set_backward_dtype(layer, backward)
    x = torch.randn(2, 5, 96, requires_grad=True)
    out = layer(x)
    out.square().sum().backward()

    exact = [t.detach().double().requires_grad_() for t in (x, layer.lora_A, layer.lora_B)]
    weight = layer.frozen(torch.float32).double() + 2.0 * exact[2] @ exact[1]
    other = torch.nn.functional.linear(exact[0], weight, layer.bias.double() if bias else None)
    other.square().sum().backward()
    assert relative(out.detach().double(), other.detach()) < 1e-6
    for found, wanted in zip((x, layer.lora_A, layer.lora_B), exact, strict=True):
        assert found.grad is not None and wanted.grad is not None
        assert relative(found.grad.double(), wanted.grad) < (1e-6 if backward is None else 1e-2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", [True, False])
def test_nothing_but_inputs_and_codes_is_kept_between_the_passes(kind: Kind, recompute: bool) -> None:
    """Of the tensors that autograd keeps none has the size of a matrix, unless a position has it."""
    model = quantized_model(kind)
    model.recompute = recompute
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    sizes = {torch.Size((m.out_features, m.in_features)) for m in model.modules() if isinstance(m, Linear)}
    found: list[torch.Size] = []

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            found.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.hidden(torch.arange(11)[None])
    assert found and not sizes & set(found)
    hidden.sum().backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert {name.rpartition(".")[2] for name in trained} == {"lora_A", "lora_B"}


@pytest.mark.parametrize(("kind", "share"), [("int8", 0.30), ("nf4", 0.15)])
def test_the_matrices_take_that_share_of_float32(kind: Kind, share: float) -> None:
    plain, model = tiny_model(), quantized_model(kind, lora=None)
    layers = [m.quantized for m in model.modules() if isinstance(m, Linear) and m.quantized is not None]
    before = sum(p.nbytes for p in plain.model.layers.parameters() if p.dim() == 2)
    assert sum(found.nbytes for found in layers) < share * before
    left = sum(p.nbytes for p in model.parameters())
    assert left == sum(p.nbytes for p in plain.parameters()) - before
    copied = [m.quantized for m in copy.deepcopy(model).modules() if isinstance(m, Linear)]
    assert [id(found) for found in copied if found] == [id(found) for found in layers]


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_is_served_what_the_whole_sequence_computes(kind: Kind) -> None:
    """Prefill and decode, with and without ``pack``: q, k and v are then no joint matrix."""
    model, ids = quantized_model(kind), torch.arange(9)[None]
    with torch.no_grad():
        whole = model(ids)
        for _ in range(2):
            cache = model.new_cache(1, 16)
            at = torch.arange(9)[None]
            first = model.step(ids[:, :6], at[:, :6], cache, torch.tensor([0]))
            rest = [model.step(ids[:, i : i + 1], at[:, i : i + 1], cache, torch.tensor([0])) for i in (6, 7)]
            last = model.step(ids[:, 8:], at[:, 8:], cache, torch.tensor([0]), last=torch.tensor([0]))
            found = torch.cat([first, *rest, last[:, None]], dim=1)
            assert (found - whole).abs().max() < 1e-5
            model.pack()
    assert (whole - tiny_model()(ids)).abs().max() > 0.1


def test_the_starting_point_has_the_same_codes_and_no_adapters() -> None:
    model = quantized_model("nf4")
    before, base = starting_point(model), quantized_model("nf4", lora=None)
    ids = torch.arange(7)[None]
    with torch.no_grad():
        assert torch.equal(before(ids), base(ids)) and before.base_kind == "nf4" and not adapted(before)
    mine = {id(m.quantized) for m in model.modules() if isinstance(m, Linear)}
    assert {id(m.quantized) for m in before.modules() if isinstance(m, Linear)} == mine
