"""A decoder-only transformer in plain torch, for the Qwen2, Qwen3 and Llama families.

One network, two ways through it: ``forward`` over whole right-padded sequences (training, scoring) and
``step`` over a key-value cache (serving; prefill and decode are the same code). Parameters carry the names
of Hugging Face, so loading and saving is a straight copy. Invariant: both ways give transformers' logits to
1e-5 in float32.

Sources: RMS norm arXiv:1910.07467, rotary embedding arXiv:2104.09864, SwiGLU arXiv:2002.05202, grouped
queries 2305.13245.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import ForeignConfig, ModelConfig
from .kv import KVCache, StepPlan


class SlotCache(Protocol):
    """What the engine asks of a cache: copy a prefix of ``length`` tokens from one slot to others, forget
    slots.
    """

    max_len: int

    def copy_prefix(self, source: int, targets: list[int], length: int) -> None: ...

    def clear(self, slots: list[int]) -> None: ...


class LanguageModel(nn.Module):
    """What the engine and the drivers use; ``CausalLM`` and ``hf.TransformersLM`` implement it."""

    config: ModelConfig | ForeignConfig

    def hidden(self, ids: Tensor, positions: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Last hidden states [B, T, H] after the final norm; see ``forward``."""
        raise NotImplementedError

    def logits(self, hidden: Tensor) -> Tensor:
        """Output layer: [..., H] to [..., V]; call it in chunks where V is large."""
        raise NotImplementedError

    def forward(self, ids: Tensor, positions: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] of ``ids`` [B, T]: causal, padding on the right.

        ``positions`` [B, T] default to 0..T-1. ``lengths`` [B], if given, zeroes the hidden states of
        padding; it cannot change those of real tokens, which never see what comes after them.
        """
        return self.logits(self.hidden(ids, positions, lengths))

    def step(
        self, ids: Tensor, positions: Tensor, cache: Any, slots: Tensor, last: Tensor | None = None
    ) -> Tensor:
        """Feed ``ids`` [B, Q] at ``positions`` [B, Q] (-1 = padding, on the right) to ``slots`` [B] of
        ``cache``.

        Positions of a row are consecutive and continue what its slot holds. Returns logits [B, Q, V], or
        [B, V] at the columns ``last`` [B] when given.
        """
        raise NotImplementedError

    def new_cache(self, slots: int, max_len: int) -> SlotCache:
        """An empty cache for ``step``."""
        raise NotImplementedError

    def pack(self) -> None:
        """Prepare for ``step`` after the weights have changed (optional, a matter of speed)."""

    @property
    def weights(self) -> nn.Module:
        """The module whose parameter names are those of the weights file."""
        return self

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        # In float32 whatever the weights' type, as transformers does.
        normed = F.rms_norm(x.float(), (x.shape[-1],), None, self.eps)
        return self.weight * normed.to(x.dtype)


Rope = tuple[Tensor, Tensor]


def rope_tables(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> Rope:
    """cos and sin [B, T, 1, head_dim] for integer ``positions`` [B, T], computed in float32."""
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    angles = positions[..., None].float() * (1.0 / theta ** (steps / head_dim))
    angles = torch.cat((angles, angles), dim=-1)[:, :, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Turn the pairs (i, i + D/2) of ``x`` [B, T, heads, D] by their position's angle."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * rope[0] + turned * rope[1]


class Attention(nn.Module):
    """Grouped-query attention; q, k and v are one matrix product in ``step`` (see ``pack``)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, dim
        self.q_proj = nn.Linear(hidden, self.heads * dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * dim, hidden, bias=False)
        self.q_norm: RMSNorm | None = RMSNorm(dim, config.rms_eps) if config.qk_norm else None
        self.k_norm: RMSNorm | None = RMSNorm(dim, config.rms_eps) if config.qk_norm else None
        self.packed: tuple[Tensor, Tensor | None] | None = None

    def pack(self) -> None:
        parts = (self.q_proj, self.k_proj, self.v_proj)
        bias = None if parts[0].bias is None else torch.cat([p.bias for p in parts])
        self.packed = (torch.cat([p.weight for p in parts]), bias)

    def project(self, x: Tensor, rope: Rope, packed: bool) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, heads, D] and k, v [B, T, kv_heads, D], normed and rotated."""
        batch, length = x.shape[:2]
        if packed and self.packed is not None:
            joint = F.linear(x, *self.packed).view(batch, length, -1, self.head_dim)
            if self.q_norm is None:
                turned = rotate(joint[:, :, : -self.kv_heads], rope)
                return turned[:, :, : self.heads], turned[:, :, self.heads :], joint[:, :, -self.kv_heads :]
            q, k, v = torch.split(joint, [self.heads, self.kv_heads, self.kv_heads], dim=2)
        else:
            q = self.q_proj(x).view(batch, length, self.heads, self.head_dim)
            k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)
            v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return rotate(q, rope), rotate(k, rope), v

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        return self._output(self._causal(*self.project(x, rope, packed=False)))

    def step(self, x: Tensor, rope: Rope, cache: KVCache, plan: StepPlan) -> Tensor:
        q, k, v = self.project(x, rope, packed=True)
        cache.write(self.layer, plan, k, v)
        if plan.fresh:
            return self._output(self._causal(q, k, v))
        keys, values = cache.read(self.layer, plan)
        if plan.index is not None:
            spread = q.new_zeros(plan.hi - plan.lo, *q.shape[1:])
            spread[plan.index] = q
            q = spread
        out = self._decode(q, keys, values, plan) if q.shape[1] == 1 else self._extend(q, keys, values, plan)
        if plan.index is not None:
            out = out[plan.index]
        return self._output(out)

    def _output(self, x: Tensor) -> Tensor:
        out: Tensor = self.o_proj(x)
        return out

    def _causal(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of [B, T, heads, D] over itself; [B, T, heads * D]."""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        grouped = self.heads != self.kv_heads
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        return out.transpose(1, 2).reshape(out.shape[0], out.shape[2], -1)

    def _decode(self, q: Tensor, keys: Tensor, values: Tensor, plan: StepPlan) -> Tensor:
        """One query a row: plain products, which beat the fused kernel at this shape."""
        groups = self.heads // self.kv_heads
        q = q.reshape(q.shape[0], self.kv_heads, groups, self.head_dim) * self.head_dim**-0.5
        scores = torch.matmul(q, keys.transpose(-1, -2))
        if plan.bias is not None:
            scores.add_(plan.bias)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)
        return torch.matmul(weights, values).reshape(q.shape[0], 1, -1)

    def _extend(self, q: Tensor, keys: Tensor, values: Tensor, plan: StepPlan) -> Tensor:
        """Several queries a row over what its slot holds, themselves included."""
        grouped = self.heads != self.kv_heads
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, attn_mask=plan.bias, enable_gqa=grouped
        )
        return out.transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)


class MLP(nn.Module):
    """SwiGLU; gate and up are one matrix product in ``step``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.packed: Tensor | None = None

    def pack(self) -> None:
        self.packed = torch.cat((self.gate_proj.weight, self.up_proj.weight))

    def forward(self, x: Tensor, packed: bool = False) -> Tensor:
        if packed and self.packed is not None:
            gate, up = F.linear(x, self.packed).chunk(2, dim=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        out: Tensor = self.down_proj(F.silu(gate) * up)
        return out


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_eps)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out

    def step(self, x: Tensor, rope: Rope, cache: KVCache, plan: StepPlan) -> Tensor:
        x = x + self.self_attn.step(self.input_layernorm(x), rope, cache, plan)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x), packed=True)
        return out


class Decoder(nn.Module):
    """Embedding, layers and final norm: everything below the output layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_eps)


class CausalLM(LanguageModel):
    """The network of a ``ModelConfig``; see ``LanguageModel`` for what its methods promise."""

    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def hidden(self, ids: Tensor, positions: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.model.embed_tokens(ids)
        rope = self._rope(positions, x.dtype)
        for layer in self.model.layers:
            x = layer(x, rope)
        out: Tensor = self.model.norm(x)
        if lengths is not None:
            real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
            out = out * real[..., None].to(out.dtype)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.lm_head(hidden)
        return out

    def step(
        self, ids: Tensor, positions: Tensor, cache: Any, slots: Tensor, last: Tensor | None = None
    ) -> Tensor:
        plan = cache.plan(slots, positions)
        x = self.model.embed_tokens(ids)
        rope = self._rope(positions.clamp(min=0), x.dtype)
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            x = layer.step(x, rope, cache, plan)
        if last is not None:
            x = x[torch.arange(x.shape[0], device=x.device), last]
        return self.logits(self.model.norm(x))

    def new_cache(self, slots: int, max_len: int) -> KVCache:
        return KVCache(self.config, slots, max_len, self.device, self.dtype)

    @torch.no_grad()
    def pack(self) -> None:
        """Join q/k/v and gate/up for ``step``. Call it again whenever the weights have changed: these are
        copies.
        """
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            layer.self_attn.pack()
            layer.mlp.pack()

    def _rope(self, positions: Tensor, dtype: torch.dtype) -> Rope:
        return rope_tables(positions, self.config.head_dim, self.config.rope_theta, dtype)
