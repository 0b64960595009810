"""A training forward in which sequences that begin alike compute their beginning once.

The samples of a group share their prompt, often most of their tokens. Here the prompt runs through the layers
once; each sample's own tokens attend to its keys and values, and the gradients of all samples add up in it.
Invariant: hidden states and gradients are those of ``CausalLM.hidden`` over the whole sequences, to rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from agl_local.network.model import Attention, CausalLM, LanguageModel, Layer, Rope, rope_tables
from agl_local.training.pack import Packed, Prefixes


def hidden_states(model: LanguageModel, packed: Packed) -> Tensor:
    """Last hidden states [B, T, H] of ``packed.ids``, whose prompts, if shared, come before them."""
    if packed.prefixes is None or packed.prefixes.ids.shape[1] == 0:
        return model.hidden(packed.ids, lengths=packed.lengths)
    if not isinstance(model, CausalLM):
        raise TypeError(f"shared prompts need a CausalLM, not a {type(model).__name__}")
    prefixes = packed.prefixes
    columns = torch.arange(packed.ids.shape[1], device=packed.ids.device)
    places = torch.arange(prefixes.ids.shape[1], device=packed.ids.device)[None]
    dim, theta = model.config.head_dim, model.config.rope_theta
    before, own = model.model.embed_tokens(prefixes.ids), model.model.embed_tokens(packed.ids)
    rope_before = rope_tables(places, dim, theta, own.dtype)
    positions = prefixes.lengths[prefixes.groups][:, None] + columns
    rope_own = rope_tables(positions, dim, theta, own.dtype)
    mask = _readable(prefixes, packed.ids.shape[1])
    last = len(model.model.layers) - 1
    for i, layer in enumerate(model.model.layers):
        assert isinstance(layer, Layer)
        before, own = _layer(layer, before, own, rope_before, rope_own, prefixes, mask, i == last)
    out: Tensor = model.model.norm(own)
    return out


def _readable(prefixes: Prefixes, width: int) -> Tensor:
    """[B, 1, T, P + T]: a token reads its whole prompt (not the padding behind it) and what came before."""
    device = prefixes.ids.device
    prompt = torch.arange(prefixes.ids.shape[1], device=device) < prefixes.lengths[prefixes.groups][:, None]
    causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    size = len(prefixes.groups)
    parts = (prompt[:, None].expand(size, width, -1), causal.expand(size, width, width))
    return torch.cat(parts, dim=-1)[:, None]


def _layer(
    layer: Layer,
    before: Tensor,
    own: Tensor,
    rope_before: Rope,
    rope_own: Rope,
    prefixes: Prefixes,
    mask: Tensor,
    last: bool,
) -> tuple[Tensor, Tensor]:
    """One layer over prompts [G, P, H] and own tokens [B, T, H]; the last needs only the prompts' keys."""
    attention = layer.self_attn
    q, k, v = _heads(attention, layer.input_layernorm(before), rope_before)
    own_q, own_k, own_v = _heads(attention, layer.input_layernorm(own), rope_own)
    keys = torch.cat((k[prefixes.groups], own_k), dim=2)
    values = torch.cat((v[prefixes.groups], own_v), dim=2)
    own = _finish(layer, own, _attend(attention, own_q, keys, values, mask))
    if not last:
        before = _finish(layer, before, _attend(attention, q, k, v, None))
    return before, own


def _heads(attention: Attention, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (part.transpose(1, 2) for part in attention.project(x, rope))
    return q, k, v


def _attend(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    grouped = attention.heads != attention.kv_heads
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    joined: Tensor = attention.o_proj(out.transpose(1, 2).flatten(2))
    return joined


def _finish(layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
    x = x + attended
    out: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
    return out
