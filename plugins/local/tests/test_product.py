"""Products by oneDNN: those of torch's own operators to rounding, whatever lies how in memory."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agl_local.generation.engine import Engine, Request
from agl_local.generation.invariance import check
from agl_local.network.linear import Linear
from agl_local.network.model import CausalLM
from agl_local.network.product import Matrix, available, faster, product, products
from agl_local.network.sampling import Sampling
from agl_local.policy.folder import Policy, init_model
from plugins.local.tests.engine_fixtures import small_policy, trained_tokenizer

LARGE, SMALL = (768, 512), (24, 16)
"""Output and input sizes of a matrix that oneDNN multiplies here, and of one that it does not."""
needs_onednn = pytest.mark.skipif(not available(), reason="torch's oneDNN for x86 is not here")


def near(found: Tensor, wanted: Tensor) -> bool:
    return torch.allclose(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="built for x86")
def test_the_pinned_torch_has_the_operators() -> None:
    assert available(), "torch.ops.mkldnn lost an operator: serving and training would be half as fast"


@needs_onednn
def test_large_float32_matrices_are_multiplied_by_onednn_and_others_are_not() -> None:
    assert faster(drawn(1, 512), drawn(*LARGE))
    assert faster(drawn(8192, 16), drawn(*SMALL))  # many rows
    assert not faster(drawn(4, 16), drawn(*SMALL))
    assert not faster(drawn(4, 512).bfloat16(), drawn(*LARGE).bfloat16())
    assert not faster(drawn(0, 512), drawn(*LARGE))
    assert not faster(drawn(512), drawn(*LARGE))


@pytest.mark.parametrize("shape", [LARGE, SMALL])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(), (0,), (1,), (17,), (2, 5)])
def test_a_product_is_that_of_torch(shape: tuple[int, int], bias: bool, rows: tuple[int, ...]) -> None:
    weight, x = drawn(*shape), drawn(*rows, shape[1], seed=1)
    added = drawn(shape[0], seed=2) if bias else None
    wanted = F.linear(x, weight, added)
    for found in (product(x, weight, added), Matrix(weight, added)(x)):
        assert found.shape == wanted.shape and (not wanted.numel() or near(found, wanted))
    at = slice(3, 9)
    wanted = F.linear(x, weight[at], None if added is None else added[at])
    found = Matrix(weight, added).part(x, at)
    assert found.shape == wanted.shape and (not wanted.numel() or near(found, wanted))


@pytest.mark.parametrize(
    "laid",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: torch.cat((x, x), dim=1)[:, : x.shape[1]],
        lambda x: torch.stack((x, x), dim=-1)[..., 0],
        lambda x: x[:1].expand(len(x), -1),
        lambda x: torch.cat((x, x))[1 : len(x) + 1],
    ],
    ids=["transposed", "gaps between rows", "gaps between columns", "repeated", "part"],
)
def test_any_layout_in_memory_gives_the_same(laid) -> None:
    x, weight = laid(drawn(40, 512, seed=1)), laid(drawn(*LARGE))
    assert near(product(x, weight), F.linear(x, weight))
    stacked = laid(drawn(700, 512))[None].expand(3, -1, -1)
    assert near(products(stacked, stacked), torch.bmm(stacked, stacked.transpose(1, 2)))


@pytest.mark.parametrize("shape", [LARGE, SMALL])
def test_gradients_are_those_of_a_plain_layer(shape: tuple[int, int]) -> None:
    torch.manual_seed(5)
    ours, plain = Linear(shape[1], shape[0]), nn.Linear(shape[1], shape[0])
    plain.load_state_dict(ours.state_dict())
    for gradient in (drawn(2, 30, shape[0], seed=3), drawn(1, 1, 1).expand(2, 30, shape[0])):
        found = []
        for layer in (ours, plain):
            layer.zero_grad()
            x = drawn(2, 30, shape[1], seed=4).requires_grad_()
            layer(x).backward(gradient)
            found.append([x.grad, *(p.grad for p in layer.parameters())])
        assert all(near(mine, theirs) for mine, theirs in zip(*found, strict=True))


def large_model(seed: int = 0) -> CausalLM:
    """A layer and an output layer of matrices that serving keeps in blocks."""
    config = replace(
        small_policy(tied=True).config,
        hidden_size=512,
        intermediate_size=640,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
    )
    return init_model(config, seed, std=0.05).eval()


@torch.no_grad()
def test_a_packed_network_steps_as_it_runs_whole_and_new_weights_replace_its_blocks() -> None:
    model, other = large_model(0), large_model(1)
    policy = Policy(model, trained_tokenizer(), model.config)
    prompt = list(range(5, 40))
    with Engine(policy, slots=2, max_len=64) as engine:
        for version, served in enumerate((model, other, model)):
            if version:
                engine.load_weights(served.state_dict(), version)
            found = engine.submit(Request(prompt, Sampling(max_tokens=8, seed=1))).result(60)[0]
            ids = torch.tensor([[*prompt, *found.token_ids]])
            logits = served(ids)[0, len(prompt) - 1 : -1]
            wanted = torch.log_softmax(logits, -1).gather(1, torch.tensor(found.token_ids)[:, None])[:, 0]
            assert torch.allclose(torch.tensor(found.logprobs), wanted, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_give_a_token_the_same_bits_in_every_row_of_a_tile(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = large_model()
        model.requires_grad_(False)
        model.pack()
        check(model)
    finally:
        torch.set_num_threads(before)


SHAPES = """
import psutil, torch
from agl_local.network.product import product
torch.set_num_threads(1)
weight, x = torch.randn(768, 512), torch.randn(1000, 512)
product(x, weight)
before = psutil.Process().memory_info().rss
for rows in range(600, 900):
    product(x[:rows], weight)
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.slow
@needs_onednn
def test_what_is_kept_for_each_shape_is_bounded() -> None:
    """300 shapes take 0.6 GB where nothing bounds them, 0.2 to 0.3 GB here."""
    ran = subprocess.run([sys.executable, "-c", SHAPES], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 400 * 2**20
