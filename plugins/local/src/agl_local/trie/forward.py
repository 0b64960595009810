"""The network over the nodes of a trie: matrix products run on the nodes as they are, without padding; only
attention knows the trie's shape.

In the last layer only nodes that are read have queries. Invariant: hidden states and gradients are those of
``LanguageModel.hidden`` over the whole sequences, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from torch import Tensor

from agl_local.network.model import CausalLM, LanguageModel, Layer, Rope, rope_tables
from agl_local.trie.attention import attend
from agl_local.trie.nodes import Block, Stack, Trie


def can_share(model: LanguageModel) -> TypeGuard[CausalLM]:
    """Whether equal beginnings can be computed once: transformers' networks know padded sequences only."""
    return isinstance(model, CausalLM)


Keep = Callable[[int, Tensor, Tensor], None]
"""Is given each layer's number and the keys and values [N, kv_heads, D] of all nodes."""


def read_states(model: CausalLM, trie: Trie, keep: Keep | None = None) -> Tensor:
    """Return the last hidden states [M, H] of the nodes of ``trie`` that are read, after the final norm."""
    x = model.model.embed_tokens(trie.ids)
    rope = rope_tables(trie.depths[None], model.config.head_dim, model.config.rope_theta, x.dtype)
    *layers, last = model.model.layers
    for layer in layers:
        x = model.run(_layer, layer, x, rope, trie.blocks, None, keep)
    out: Tensor = model.model.norm(model.run(_layer, last, x, rope, trie.last, trie.read, keep))
    return out


def _layer(
    layer: Layer,
    x: Tensor,
    rope: Rope,
    blocks: tuple[Block, ...] | tuple[Stack, ...],
    read: Tensor | None,
    keep: Keep | None,
) -> Tensor:
    """One layer over nodes [N, H]; of those in ``read`` [M] only, if given."""
    q, k, v = (part[0] for part in layer.self_attn.project(layer.input_layernorm(x)[None], rope))
    if keep is not None:
        keep(layer.self_attn.layer, k, v)
    if read is not None:
        q, x = q.index_select(0, read), x.index_select(0, read)
    x = x + layer.self_attn.o_proj(attend(q, k, v, blocks))
    out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out
