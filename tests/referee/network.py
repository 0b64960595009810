"""A decoder of the Qwen2 family in plain torch and float64, with parameters by name, and AdamW.

Sources: RMS norm arXiv 1910.07467, rotary embedding arXiv 2104.09864, SwiGLU arXiv 2002.05202, grouped
queries arXiv 2305.13245, LoRA arXiv 2106.09685, AdamW arXiv 1711.05101.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass
class Network:
    """A policy's configuration, its weights, and of LoRA the scale of B @ A."""

    config: dict[str, Any]
    weights: Tensors
    scale: float = 0.0

    def linear(self, name: str, x: Tensor) -> Tensor:
        weights = self.weights
        y = x @ weights[f"{name}.weight"].T
        if (bias := weights.get(f"{name}.bias")) is not None:
            y = y + bias
        if (a := weights.get(f"{name}.lora_A")) is not None:
            y = y + (x @ a.T) @ weights[f"{name}.lora_B"].T * self.scale
        return y

    def norm(self, name: str, x: Tensor) -> Tensor:
        square = x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]
        return x * square.rsqrt() * self.weights[f"{name}.weight"]

    def attention(self, at: str, x: Tensor) -> Tensor:
        c, size = self.config, len(x)
        heads, groups, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        q, k, v = (
            self.linear(f"{at}.{n}_proj", x).view(size, -1, dim).transpose(0, 1) for n in ("q", "k", "v")
        )
        angle = torch.arange(size)[:, None] / c["rope_theta"] ** (torch.arange(0, dim, 2) / dim)
        angle = angle.float().double()  # tables are made in float32
        cos, sin = angle.cos(), angle.sin()

        def turned(y: Tensor) -> Tensor:
            one, two = y[..., : dim // 2], y[..., dim // 2 :]
            return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)

        q, k = turned(q), turned(k)
        k, v = (y.repeat_interleave(heads // groups, 0) for y in (k, v))
        scores = q @ k.transpose(1, 2) / dim**0.5
        later = torch.ones(size, size, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, -torch.inf).softmax(-1) @ v
        return self.linear(f"{at}.o_proj", mixed.transpose(0, 1).reshape(size, -1))

    def logprobs(self, ids: list[int], temperature: float = 1.0) -> Tensor:
        """Of each token but the first, under what is before it."""
        x = self.weights["model.embed_tokens.weight"][torch.tensor(ids[:-1])]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            x = x + self.attention(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", x))
            y = self.norm(f"{at}.post_attention_layernorm", x)
            gate, up = self.linear(f"{at}.mlp.gate_proj", y), self.linear(f"{at}.mlp.up_proj", y)
            x = x + self.linear(f"{at}.mlp.down_proj", torch.nn.functional.silu(gate) * up)
        head = "model.embed_tokens" if self.config["tie_word_embeddings"] else "lm_head"
        logits = self.norm("model.norm", x) @ self.weights[f"{head}.weight"].T / temperature
        return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def read_network(folder: Path, adapter: Path | None = None) -> Network:
    """A policy's folder; ``adapter``: LoRA's matrices in PEFT's format, whose sums the weights then are."""
    config = json.loads((folder / "config.json").read_text())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    weights = {
        n: t.double() for part in sorted(folder.glob("*.safetensors")) for n, t in load_file(part).items()
    }
    if adapter is None:
        return Network(config, weights)
    said = json.loads((adapter / "adapter_config.json").read_text())
    scale = said["lora_alpha"] / said["r"]
    for name, matrix in load_file(adapter / "adapter_model.safetensors").items():
        weights[name.removeprefix("base_model.model.").removesuffix(".weight")] = matrix.double()
    return Network(config, weights, scale)


def module_order(network: Network, end: str = "") -> list[str]:
    """The parts of a Qwen2 network, as it declares them; with ``end``, those of its blocks that end so."""
    inner = [*(f"self_attn.{n}_proj" for n in "qkvo"), *(f"mlp.{n}_proj" for n in ("gate", "up", "down"))]
    inner += ["input_layernorm", "post_attention_layernorm"]
    layers = range(network.config["num_hidden_layers"])
    blocks = [f"model.layers.{n}.{part}" for n in layers for part in inner if part.endswith(end)]
    return blocks if end else ["model.embed_tokens", *blocks, "model.norm", "lm_head"]


def trained_names(network: Network) -> list[str]:
    """The parameters that are trained."""
    small = [name for name in network.weights if ".lora_" in name]
    return small or list(network.weights)


@dataclass
class AdamW:
    """Moments and steps so far, the largest norm of a gradient, and the seed of mini-batches."""

    lr: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    clip: float | None
    seed: int
    first: Tensors
    second: Tensors
    steps: int = 0

    def step(self, weights: Tensors, grads: Tensors) -> None:
        """Change ``weights``. Matrices alone decay."""
        self.steps += 1
        one, two = self.betas
        for name, g in grads.items():
            m = self.first[name] = one * self.first.get(name, torch.zeros_like(g)) + (1 - one) * g
            v = self.second[name] = two * self.second.get(name, torch.zeros_like(g)) + (1 - two) * g * g
            decay = self.weight_decay if g.dim() > 1 else 0.0
            root = (v / (1 - two**self.steps)).sqrt() + self.eps
            weights[name] = weights[name] * (1 - self.lr * decay) - self.lr / (1 - one**self.steps) * m / root

    def slack(self, grads: Tensors, delta: float) -> Tensors:
        """How far the latest step moves each weight at most by rounding, if entries of gradients and moments
        are known to ``delta`` times the largest of their tensor.
        """
        found = {}
        for name, g in grads.items():
            root = (self.second[name] / (1 - self.betas[1] ** self.steps)).sqrt() + self.eps
            largest = torch.maximum(g.abs().max(), self.first[name].abs().max())
            found[name] = (self.lr * 2 * delta * largest / root).clamp(max=2 * self.lr)
        return found
