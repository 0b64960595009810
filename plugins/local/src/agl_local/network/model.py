"""A decoder-only transformer in plain torch, for the families ``config.OWN``.

One network, two ways through it: ``forward`` over whole right-padded sequences (training, scoring) and
``step`` over a key-value cache (serving; prefill and decode are the same code). Parameters carry the names
of Hugging Face, so loading and saving is a straight copy. Invariant: both ways give transformers' logits to
1e-5 in float32.

Sources: RMS norm arXiv:1910.07467, rotary embedding arXiv:2104.09864, SwiGLU arXiv:2002.05202, grouped
queries 2305.13245.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agl_local.network.attend import attend, causal, decode
from agl_local.network.config import ForeignConfig, ModelConfig
from agl_local.network.elementwise import rms_norm, swiglu
from agl_local.network.kv import KVCache, StepPlan
from agl_local.network.layout import join
from agl_local.network.linear import Linear, add_beside, linear
from agl_local.network.product import Matrix
from agl_local.network.quantized import Kind
from agl_local.network.sending import sent


class SlotCache(Protocol):
    """What the engine asks of a cache: copy a prefix of ``length`` tokens from one slot to others, forget
    slots.
    """

    max_len: int
    cuts: bool
    """Whether the first tokens of any slot can be had without those after them."""

    def can_give(self, slot: int, length: int) -> bool:
        """Whether the first ``length`` tokens of ``slot``, which has as many, can be had."""

    def copy_prefix(self, source: int, targets: list[int], length: int) -> None: ...

    def clear(self, slots: list[int]) -> None: ...


class LanguageModel(nn.Module):
    """What the engine and the drivers use; ``CausalLM`` and ``hf.TransformersLM`` implement it."""

    config: ModelConfig | ForeignConfig
    base_kind: Kind | None = None
    """In what the matrices of the layers are kept where they are not of the model's type; they are frozen."""
    shared: bool = False
    """Whether other networks compute with the same frozen weights (``lora.become_base``)."""

    def hidden(self, ids: Tensor, positions: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Last hidden states [B, T, H] after the final norm; see ``forward``."""
        raise NotImplementedError

    def logits(self, hidden: Tensor, only: Tensor | None = None) -> Tensor:
        """Output layer: [..., H] to [..., V], or of the tokens ``only`` [K] to [..., K]; call it in chunks
        where V is large.
        """
        raise NotImplementedError

    def forward(self, ids: Tensor, positions: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] of ``ids`` [B, T]: causal, padding on the right.

        ``positions`` [B, T] default to 0..T-1. ``lengths`` [B], if given, zeroes the hidden states of
        padding; it cannot change those of real tokens, which never see what comes after them.
        """
        return self.logits(self.hidden(ids, positions, lengths))

    def step(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Any,
        slots: Tensor,
        last: Tensor | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        """Feed ``ids`` [B, Q] at ``positions`` [B, Q] (-1 = padding, on the right) to ``slots`` [B] of
        ``cache``. These, and ``last``, are best left on the CPU, whatever the model's device is.

        Positions of a row are consecutive and continue what its slot holds. Returns logits [B, Q, V], or
        [B, V] at the columns ``last`` [B] when given; of the tokens ``only`` [K] alone, K instead of V.
        """
        raise NotImplementedError

    def new_cache(self, slots: int, max_len: int) -> SlotCache:
        """An empty cache for ``step``."""
        raise NotImplementedError

    def linear_layers(self) -> list[str]:
        """Names, within ``weights``, of the linear layers of the blocks that may get adapters (``lora``)."""
        raise NotImplementedError

    def pack(self) -> None:
        """Prepare for ``step`` (optional, a matter of speed); to be called again when parameters change."""

    @property
    def fixed(self) -> bool:
        """Whether engines have all weights but the A and B of LoRA, and are sent these alone."""
        return self.shared or self.base_kind is not None

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
            return rms_norm(x, self.weight, self.eps)
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


def signed(sin: Tensor) -> Tensor:
    """The sines [..., D] with the signs that ``rotate`` gives to the turned halves: for ``rotate_``."""
    half = sin.shape[-1] // 2
    return torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)


def rotate_(x: Tensor, rope: Rope) -> None:
    """``rotate`` in place: ``x`` [N, heads, D], cos and ``signed`` sin [N, 1, D]."""
    half = x.shape[-1] // 2
    turned = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    x.mul_(rope[0]).addcmul_(turned, rope[1])


@dataclass
class Tail:
    """Where a prefill's outputs are wanted: ``rows`` [B] of its tokens, each read as a decode step would."""

    rows: Tensor
    plan: StepPlan


class Attention(nn.Module):
    """Grouped-query attention; q, k and v are one matrix product in ``step`` (see ``pack``)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        hidden, dim = config.hidden_size, config.head_dim
        self.layer = layer
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, dim
        self.q_proj = Linear(hidden, self.heads * dim, bias=config.qkv_bias)
        self.k_proj = Linear(hidden, self.kv_heads * dim, bias=config.qkv_bias)
        self.v_proj = Linear(hidden, self.kv_heads * dim, bias=config.qkv_bias)
        self.o_proj = Linear(self.heads * dim, hidden, bias=False)
        self.q_norm: RMSNorm | None = RMSNorm(dim, config.rms_eps) if config.qk_norm else None
        self.k_norm: RMSNorm | None = RMSNorm(dim, config.rms_eps) if config.qk_norm else None
        self.rotates = layer not in config.no_rope
        self.packed: Matrix | None = None

    def pack(self) -> None:
        """Put the weights of q, k and v one below the other; the parameters are views of that."""
        parts = (self.q_proj, self.k_proj, self.v_proj)
        self.packed = None
        if all(part.quantized is None for part in parts):
            bias = None if parts[0].bias is None else join([p.bias for p in parts])
            self.packed = Matrix(join([p.weight for p in parts]), bias)
        self.o_proj.pack()

    def project(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, T, heads, D] and k, v [B, T, kv_heads, D], normed and, if the layer does that, rotated."""
        batch, length = x.shape[:2]
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return (rotate(q, rope), rotate(k, rope), v) if self.rotates else (q, k, v)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        return self._output(causal(*self.project(x, rope)))

    def step(self, x: Tensor, rope: Rope, cache: KVCache, plan: StepPlan) -> Tensor:
        """Tokens [B * Q, H] over the cache, where their keys and values go."""
        joint = self.joint(x, rope)
        cache.write(self.layer, plan.written, joint[:, self.heads :])
        return self._output(attend(joint[:, : self.heads], joint[:, self.heads :], self.layer, cache, plan))

    def step_last(self, x: Tensor, rope: Rope, cache: KVCache, plan: StepPlan, tail: Tail) -> Tensor:
        """As ``step``, for the outputs [B, H] of ``tail`` only: of the others only keys and values matter."""
        cache.write(self.layer, plan.written, self.joint(x, rope, self.heads))
        q = self.joint(x[tail.rows], (rope[0][tail.rows], rope[1][tail.rows]), 0, self.heads)
        return self._output(decode(q, self.layer, cache, tail.plan))

    def joint(self, x: Tensor, rope: Rope, first: int = 0, stop: int | None = None) -> Tensor:
        """Heads ``first:stop`` of q, k and v in this order, [N, heads, D], normed and rotated in place."""
        joint = self._joint(x, first, stop)
        joint = joint.view(x.shape[0], -1, self.head_dim)
        turning = joint if stop else joint[:, : -self.kv_heads]
        if self.q_norm is not None and self.k_norm is not None:
            queries, keys = turning[:, : self.heads - first], turning[:, self.heads - first :]
            queries.copy_(self.q_norm(queries))
            keys.copy_(self.k_norm(keys))
        if self.rotates:
            rotate_(turning, rope)
        return joint

    def _joint(self, x: Tensor, first: int, stop: int | None) -> Tensor:
        """q, k and v of ``x`` [N, H] side by side; only q where ``stop``, and k and v where ``first`` is
        their border.
        """
        parts = [self.q_proj] if first == 0 else []
        parts += [] if stop else [self.k_proj, self.v_proj]
        if self.packed is not None and self.packed.of(self.q_proj.weight):
            at = slice(first * self.head_dim, stop and stop * self.head_dim)
            out = self.packed(x) if at == slice(0, None) else self.packed.part(x, at)
            return add_beside(out, x, parts)
        return torch.cat([part(x) for part in parts], dim=-1)

    def _output(self, x: Tensor) -> Tensor:
        out: Tensor = self.o_proj(x)
        return out


class MLP(nn.Module):
    """SwiGLU; gate and up are one matrix product in ``step``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.packed: Matrix | None = None

    def pack(self) -> None:
        """Put the weights of gate and up one below the other; the parameters are views of that."""
        parts = (self.gate_proj, self.up_proj)
        plain = all(part.quantized is None for part in parts)
        self.packed = Matrix(join([part.weight for part in parts])) if plain else None
        self.down_proj.pack()

    def forward(self, x: Tensor, packed: bool = False) -> Tensor:
        if packed and self.packed is not None and self.packed.of(self.gate_proj.weight):
            gate, up = add_beside(self.packed(x), x, (self.gate_proj, self.up_proj)).chunk(2, dim=-1)
        else:
            gate, up = self.gate_proj(x), self.up_proj(x)
        out: Tensor = self.down_proj(swiglu(gate, up))
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

    def step(self, x: Tensor, rope: Rope, cache: KVCache, plan: StepPlan, tail: Tail | None = None) -> Tensor:
        """Hidden states of all tokens [B * Q, H], or of those of ``tail`` [B, H]."""
        normed = self.input_layernorm(x)
        if tail is None:
            x = x + self.self_attn.step(normed, rope, cache, plan)
        else:
            x = x[tail.rows] + self.self_attn.step_last(normed, rope, cache, plan, tail)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x), packed=True)
        return out


class Decoder(nn.Module):
    """Embedding, layers and final norm: everything below the output layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size = config.vocab_size, config.hidden_size
        self.embed_tokens = nn.Embedding(*size, _weight=torch.empty(size))  # given: torch does not fill it
        self.layers = nn.ModuleList(Layer(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_eps)


class CausalLM(LanguageModel):
    """The network of a ``ModelConfig``; see ``LanguageModel`` for what its methods promise."""

    config: ModelConfig
    recompute: bool = False
    """Whether a backward pass computes each layer again instead of keeping what it needs (activation
    checkpointing, arXiv:1604.06174)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def hidden(self, ids: Tensor, positions: Tensor | None = None, lengths: Tensor | None = None) -> Tensor:
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)[None]
        x = self.model.embed_tokens(ids)
        rope = self._rope(positions, x.dtype)
        for layer in self.model.layers:
            x = self.run(layer, x, rope)
        out: Tensor = self.model.norm(x)
        if lengths is not None:
            real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
            out = out * real[..., None].to(out.dtype)
        return out

    def run(self, layer: Callable[..., Any], *inputs: Any) -> Tensor:
        """``layer(*inputs)``, of which a backward pass keeps only the inputs if ``recompute`` is set."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]
        out: Tensor = layer(*inputs)
        return out

    def logits(self, hidden: Tensor, only: Tensor | None = None) -> Tensor:
        if only is not None:
            return linear(hidden, self.lm_head.weight.index_select(0, only))
        out: Tensor = self.lm_head(hidden)
        return out

    def step(
        self,
        ids: Tensor,
        positions: Tensor,
        cache: Any,
        slots: Tensor,
        last: Tensor | None = None,
        only: Tensor | None = None,
    ) -> Tensor:
        if last is None:
            ids, *there = sent(self.device, ids, positions, slots)
            plan, tail = cache.plan(slots, positions, there), None
        else:
            rows = torch.arange(len(last), device=last.device) * positions.shape[1] + last
            ends = positions.flatten()[rows][:, None]
            ids, positions_there, ends_there, slots_there, rows = sent(
                self.device, ids, positions, ends, slots, rows
            )
            there = [positions_there, slots_there]
            plan = cache.plan(slots, positions, there)
            tail = Tail(rows, cache.plan(slots, ends, [ends_there, slots_there]))
        logits = self.logits(self.through(ids.flatten(), there[0].flatten(), cache, plan, tail), only)
        return logits if tail is not None else logits.view(*plan.shape, -1)

    def through(
        self, ids: Tensor, positions: Tensor, cache: KVCache, plan: StepPlan, tail: Tail | None = None
    ) -> Tensor:
        """The hidden states [B * Q, H] of tokens ``ids`` [B * Q] after the final norm; of ``tail`` [B, H]."""
        x = self.model.embed_tokens(ids)
        at = positions.clamp(min=0)
        cos, sin = cache.rope
        rope = (cos[at], sin[at])
        final = len(self.model.layers) - 1
        for i, layer in enumerate(self.model.layers):
            assert isinstance(layer, Layer)
            x = layer.step(x, rope, cache, plan, tail if i == final else None)
        out: Tensor = self.model.norm(x)
        return out

    def new_cache(self, slots: int, max_len: int) -> KVCache:
        positions = torch.arange(max_len, device=self.device)
        cos, sin = self._rope(positions[:, None], self.dtype)
        return KVCache(self.config, slots, max_len, (cos[:, 0], signed(sin[:, 0])))

    def linear_layers(self) -> list[str]:
        layers = self.model.layers.named_modules()
        return [f"model.layers.{name}" for name, module in layers if isinstance(module, Linear)]

    @torch.no_grad()
    def quantize(self, kind: Kind) -> None:
        """Keep the matrices of the layers in ``kind`` from now on; embedding, output layer, norms and biases
        stay as they are.
        """
        self.base_kind = kind
        for module in self.model.layers.modules():
            if isinstance(module, Linear):
                module.quantize(kind)

    @torch.no_grad()
    def pack(self) -> None:
        """Lay q, k and v of each layer side by side in memory, and gate and up, and take a copy of large
        matrices in the layout that their products are fastest with (``product.Matrix``).
        """
        self.lm_head.pack()
        for layer in self.model.layers:
            assert isinstance(layer, Layer)
            layer.self_attn.pack()
            layer.mlp.pack()

    def _rope(self, positions: Tensor, dtype: torch.dtype) -> Rope:
        return rope_tables(positions, self.config.head_dim, self.config.rope_theta, dtype)
