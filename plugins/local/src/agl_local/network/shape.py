"""The sizes of a decoder-only network, and those of published models by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkShape:
    """Sizes of a network whose layers have attention over groups of heads and a gated MLP.

    ``tied`` shares the embedding with the output layer; ``qkv_bias`` is a bias on q, k and v; ``qk_norm`` is
    a norm per head on q and k.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False


def _qwen(
    hidden: int, inner: int, layers: int, heads: tuple[int, int], width: int, words: int
) -> NetworkShape:
    """Return a network of Qwen 2.5; its output layer is the embedding below seven billion parameters."""
    return NetworkShape(hidden, inner, layers, *heads, width, words, tied=hidden < 3584, qkv_bias=True)


MODELS: Mapping[str, NetworkShape] = {
    "SmolLM2-135M": NetworkShape(576, 1536, 30, 9, 3, 64, 49152, tied=True),
    "Qwen2.5-0.5B": _qwen(896, 4864, 24, (14, 2), 64, 151936),
    "Qwen2.5-1.5B": _qwen(1536, 8960, 28, (12, 2), 128, 151936),
    "Qwen2.5-3B": _qwen(2048, 11008, 36, (16, 2), 128, 151936),
    "Qwen2.5-7B": _qwen(3584, 18944, 28, (28, 4), 128, 152064),
    "Qwen2.5-14B": _qwen(5120, 13824, 48, (40, 8), 128, 152064),
    "Qwen2.5-32B": _qwen(5120, 27648, 64, (40, 8), 128, 152064),
    "Qwen2.5-72B": _qwen(8192, 29568, 80, (64, 8), 128, 152064),
}
"""Shapes of published models that have a forward of our own, from their config.json."""
