"""A decoder of the Qwen2 family in plain torch and float64, with parameters by name, and AdamW.

Sources: RMS norm arXiv 1910.07467, rotary embedding arXiv 2104.09864, SwiGLU arXiv 2002.05202, grouped
queries arXiv 2305.13245, LoRA arXiv 2106.09685, AdamW arXiv 1711.05101.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

Tensors = dict[str, Tensor]


@dataclass
class Network:
    """A policy's configuration, its weights, and of LoRA the scale of B @ A."""

    config: dict[str, Any]
    weights: Tensors
    scale: float = 0.0

    def linear(self, name: str, x: Tensor) -> Tensor:
        weights = self.weights
        y = functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))
        if (a := weights.get(f"{name}.lora_A")) is not None:
            y = y + (x @ a.T) @ weights[f"{name}.lora_B"].T * self.scale
        return y

    def norm(self, name: str, x: Tensor) -> Tensor:
        eps = self.config["rms_norm_eps"]
        return functional.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], eps)

    def attention(self, at: str, x: Tensor) -> Tensor:
        c, size, dim = self.config, len(x), self.config["head_dim"]
        q, k, v = (self.linear(f"{at}.{n}_proj", x).view(size, -1, dim).transpose(0, 1) for n in "qkv")
        angle = torch.arange(size)[:, None] / c["rope_theta"] ** (torch.arange(0, dim, 2) / dim)
        angle = angle.float().double()  # tables are made in float32
        cos, sin = angle.cos(), angle.sin()

        def turned(y: Tensor) -> Tensor:
            one, two = y[..., : dim // 2], y[..., dim // 2 :]
            return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)

        q, k = turned(q), turned(k)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.linear(f"{at}.o_proj", mixed.transpose(0, 1).reshape(size, -1))

    def logprobs(self, ids: list[int], temperature: float = 1.0) -> Tensor:
        """Of each token but the first, under what is before it."""
        x = self.weights["model.embed_tokens.weight"][torch.tensor(ids[:-1])]
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            x = x + self.attention(f"{at}.self_attn", self.norm(f"{at}.input_layernorm", x))
            y = self.norm(f"{at}.post_attention_layernorm", x)
            gate, up = self.linear(f"{at}.mlp.gate_proj", y), self.linear(f"{at}.mlp.up_proj", y)
            x = x + self.linear(f"{at}.mlp.down_proj", functional.silu(gate) * up)
        head = "model.embed_tokens" if self.config["tie_word_embeddings"] else "lm_head"
        logits = self.norm("model.norm", x) @ self.weights[f"{head}.weight"].T / temperature
        return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def read_network(folder: Path, adapter: Path | None = None) -> Network:
    """A policy's folder; ``adapter``: LoRA's matrices in PEFT's format, whose sums the weights then are."""
    config = json.loads((folder / "config.json").read_text())
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    parts = [load_file(part) for part in sorted(folder.glob("*.safetensors"))]
    weights = {name: tensor.double() for part in parts for name, tensor in part.items()}
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
    """A run's options, the seed of mini-batches, moments, and steps so far."""

    options: dict[str, Any]
    seed: int
    first: Tensors = field(default_factory=dict)
    second: Tensors = field(default_factory=dict)
    steps: int = 0

    def step(self, weights: Tensors, grads: Tensors) -> None:
        """Change ``weights``. Matrices alone decay."""
        self.steps += 1
        lr, (one, two) = self.options["lr"], self.options["betas"]
        for name, g in grads.items():
            m = self.first[name] = one * self.first.get(name, torch.zeros_like(g)) + (1 - one) * g
            v = self.second[name] = two * self.second.get(name, torch.zeros_like(g)) + (1 - two) * g * g
            decay = self.options["weight_decay"] if g.dim() > 1 else 0.0
            root = (v / (1 - two**self.steps)).sqrt() + self.options["eps"]
            weights[name] = weights[name] * (1 - lr * decay) - lr / (1 - one**self.steps) * m / root

    def slack(self, grads: Tensors, delta: float) -> Tensors:
        """How far the latest step moves each weight at most by rounding, if entries of gradients and moments
        are known to ``delta`` times the largest of their tensor.
        """
        found, lr = {}, self.options["lr"]
        for name, g in grads.items():
            root = (self.second[name] / (1 - self.options["betas"][1] ** self.steps)).sqrt()
            largest = torch.maximum(g.abs().max(), self.first[name].abs().max())
            found[name] = (lr * 2 * delta * largest / (root + self.options["eps"])).clamp(max=2 * lr)
        return found
