"""The hidden states that a loss reads: of padded sequences, or of a trie in which equal beginnings are one.

Over a trie all matrix products run on its nodes as they are, without padding; only attention knows its shape.
In the last layer only nodes that are read have queries. Invariant: hidden states and gradients are those of
``LanguageModel.hidden`` over the whole sequences, to rounding.
"""

from __future__ import annotations

from torch import Tensor

from agl_local.network.model import CausalLM, LanguageModel, Layer, Rope, rope_tables
from agl_local.training.attention import attend
from agl_local.training.pack import Padded
from agl_local.training.trie import Block, Trie


def can_share(model: LanguageModel) -> bool:
    """Whether equal beginnings can be computed once: transformers' networks know padded sequences only."""
    return isinstance(model, CausalLM)


def hidden_states(model: LanguageModel, inputs: Padded | Trie) -> Tensor:
    """Last hidden states: [B * T, H] of padded sequences, [M, H] of the nodes of a trie that are read."""
    if isinstance(inputs, Padded):
        return model.hidden(inputs.ids, lengths=inputs.lengths).flatten(0, 1)
    if not isinstance(model, CausalLM):
        raise TypeError(f"shared beginnings need a CausalLM, not a {type(model).__name__}")
    x = model.model.embed_tokens(inputs.ids)
    rope = rope_tables(inputs.depths[None], model.config.head_dim, model.config.rope_theta, x.dtype)
    *layers, last = model.model.layers
    for layer in layers:
        x = model.run(_layer, layer, x, rope, inputs.blocks, None)
    out: Tensor = model.model.norm(model.run(_layer, last, x, rope, inputs.last, inputs.read))
    return out


def _layer(layer: Layer, x: Tensor, rope: Rope, blocks: tuple[Block, ...], read: Tensor | None) -> Tensor:
    """One layer over nodes [N, H]; of those in ``read`` [M] only, if given."""
    q, k, v = (part[0] for part in layer.self_attn.project(layer.input_layernorm(x)[None], rope))
    if read is not None:
        q, x = q.index_select(0, read), x.index_select(0, read)
    x = x + layer.self_attn.o_proj(attend(q, k, v, blocks))
    out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out
