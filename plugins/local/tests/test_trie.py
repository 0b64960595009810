"""A forward pass over a trie gives what whole sequences give, and computes each history once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st

import agl_local.network.model
import agl_local.trie.nodes
from agentlightning.types.tokens import pack as packed_ids
from agl_local.network.model import CausalLM
from agl_local.policy.folder import init_model
from agl_local.training.logprobs import token_logprobs
from agl_local.training.pack import inputs_needed, micro_batches, pack
from agl_local.trie.nodes import Trie, batches
from plugins.local.tests.driver_fixtures import gradients, relative, tiny_config, tiny_model

Forest = list[tuple[list[int], list[int]]]
"""Sequences, and the positions of each that are trained."""


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agl_local.trie.nodes, "BLOCK", 5)


@pytest.fixture(scope="module")
def exact() -> CausalLM:
    """A network in float64 throughout."""
    model = tiny_model()

    class Norm(agl_local.network.model.RMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * torch.nn.functional.rms_norm(x, (x.shape[-1],), None, self.eps)

    for module in model.modules():
        if isinstance(module, agl_local.network.model.RMSNorm):
            module.__class__ = Norm
    model.double()
    return model


def scored(model: CausalLM, forest: Forest, share: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of the trained tokens, and the gradient of a sum with a weight for each."""
    model.zero_grad()
    packed = pack([s for s, _ in forest], [t for _, t in forest], share).to(model.device)
    found = token_logprobs(model, packed, entropy=True)
    assert found.entropy is not None
    weights = torch.linspace(-1.0, 1.5, len(found.logprobs)).to(found.logprobs)
    (weights * (found.logprobs + 0.3 * found.entropy)).sum().backward()  # type: ignore[no-untyped-call]
    return found.logprobs.detach(), gradients(model)


def compare(model: CausalLM, forest: Forest, values: float, slopes: float) -> None:
    apart, slope = scored(model, forest, share=False)
    together, shared_slope = scored(model, forest, share=True)
    assert float((together - apart).abs().max()) < values
    assert relative(shared_slope, slope) < slopes


def histories(sequences: Sequence[Sequence[int]]) -> set[tuple[int, ...]]:
    return {tuple(s[: n + 1]) for s in sequences for n in range(len(s))}


@st.composite
def forests(draw: st.DrawFn) -> Forest:
    """Sequences of three different tokens: many begin alike, some are equal or the beginning of another."""
    found: Forest = []
    for _ in range(draw(st.integers(1, 7))):
        ids = draw(st.lists(st.integers(1, 3), min_size=1, max_size=14))
        if draw(st.booleans()) and found:
            other = draw(st.sampled_from(found))[0]
            ids = other[: draw(st.integers(0, len(other)))] + ids
        places = st.lists(st.integers(1, max(1, len(ids) - 1)), unique=True, max_size=6)
        found.append((ids, sorted(draw(places)) if len(ids) > 1 else []))
    return found


@pytest.mark.usefixtures("small_blocks")
def test_any_forest_gives_the_logprobs_and_gradients_of_its_sequences(exact: CausalLM) -> None:
    @settings(max_examples=60, deadline=None)
    @given(forests())
    def check(forest: Forest) -> None:
        trained = [positions for _, positions in forest]
        packed = pack([s for s, _ in forest], trained, share=True)
        assert isinstance(packed.inputs, Trie)
        inputs = [s[: inputs_needed(t)] for s, t in forest]
        assert packed.inputs.computed == len(histories(inputs))
        assert packed.needed == sum(map(len, inputs))
        if any(trained):
            compare(exact, forest, 1e-10, 1e-10)

    check()


@pytest.mark.parametrize("arch", ["qwen2", "qwen3", "llama", "smollm3"])
def test_a_few_groups_in_float32(arch: str) -> None:
    config = tiny_config(29)
    changes = {"arch": arch, "qkv_bias": arch == "qwen2", "qk_norm": arch == "qwen3"}
    changes |= {"no_rope": (1,)} if arch == "smollm3" else {}
    model = init_model(type(config)(**{**vars(config), **changes}), 0, std=0.2).eval()
    generator = torch.Generator().manual_seed(3)

    def ids(count: int) -> list[int]:
        return torch.randint(1, 29, (count,), generator=generator).tolist()

    header, forest = ids(40), []
    for group in range(6):
        prompt = [*header, *ids(20 + 5 * group)]
        for sample in range(5):
            sequence = [*prompt, *ids(3 + sample)]
            forest.append((sequence, list(range(len(prompt), len(sequence)))))
    compare(model, forest, 1e-5, 1e-5)


def test_nothing_to_train_and_no_sequences() -> None:
    model = tiny_model()
    for sequences in ([], [[1, 2, 3]], [[1], [2]]):
        packed = pack(sequences, [[] for _ in sequences], share=True).to(model.device)
        assert packed.inputs.computed == 0
        assert token_logprobs(model, packed).logprobs.shape == (0,)


def test_only_nodes_that_are_read_go_through_the_last_layer() -> None:
    model, seen = tiny_model(), []
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    packed = pack([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 6]], [[3], [3], [2]], share=True)
    token_logprobs(model, packed.to(model.device))
    assert seen == [3, 2]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(1, 3), max_size=9), max_size=12), st.integers(1, 30))
def test_batches_hold_every_sequence_once_and_are_bounded(sequences: list[list[int]], bound: int) -> None:
    found = batches([packed_ids(s) for s in sequences], bound)
    assert sorted(i for batch in found for i in batch) == list(range(len(sequences)))
    for batch in found:
        assert len(batch) == 1 or len(histories([sequences[i] for i in batch])) <= bound


def test_a_full_batch_ends_between_groups() -> None:
    groups = [[10 + group] * 8 for group in range(4)]
    sequences = [[*prompt, 1 + sample, 2] for prompt in groups for sample in range(4)]
    found = micro_batches(sequences, [[9]] * 16, max_tokens=30, share=True)
    assert found == [list(range(8)), list(range(8, 16))]
