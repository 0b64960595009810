"""The hidden states that a loss reads, of padded sequences or of a trie of them."""

from __future__ import annotations

from torch import Tensor

from agl_local.network.model import LanguageModel
from agl_local.training.pack import Padded
from agl_local.trie.forward import can_share, read_states
from agl_local.trie.nodes import Trie


def hidden_states(model: LanguageModel, inputs: Padded | Trie) -> Tensor:
    """Last hidden states: [B * T, H] of padded sequences, [M, H] of the nodes of a trie that are read."""
    if isinstance(inputs, Padded):
        return model.hidden(inputs.ids, lengths=inputs.lengths).flatten(0, 1)
    if not can_share(model):
        raise TypeError(f"shared beginnings need a CausalLM, not a {type(model).__name__}")
    return read_states(model, inputs)
