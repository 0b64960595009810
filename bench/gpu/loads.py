"""Networks of random weights on a device, and what is asked of them: the loads of ``launches.py`` and
``run.py``.
"""

from __future__ import annotations

import math
import random

import torch
from tokenizers import Tokenizer, decoders, models

from agentlightning.types import Row
from agl_local.network.config import ModelConfig
from agl_local.network.layout import realise
from agl_local.network.model import CausalLM
from agl_local.policy.folder import Policy
from agl_local.text.tokenizer import ChatTokenizer


def shape(hidden: int, inner: int, layers: int, heads: int, head_dim: int, vocab: int) -> ModelConfig:
    """A network of the Qwen3 family, with a key head for two query heads."""
    return ModelConfig(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=heads // 2,
        head_dim=head_dim,
        vocab_size=vocab,
        rope_theta=1e6,
        max_positions=4096,
        tied=True,
        arch="qwen3",
        qkv_bias=False,
        qk_norm=True,
    )


SHAPES = {
    "tiny": shape(64, 128, 2, 4, 32, 500),
    "deep": shape(32, 64, 28, 4, 16, 500),
    "0.6b": shape(1024, 3072, 28, 16, 128, 151_936),
    "1.7b": shape(2048, 6144, 28, 16, 128, 151_936),
}
"""``deep`` has the layers of the larger two and tiny widths: it launches what they launch."""


def network(name: str, device: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> CausalLM:
    """Weights of deviation 0.02, drawn on the device itself."""
    with torch.device("meta"):
        bare = CausalLM(SHAPES[name])
    model = realise(bare, dtype, torch.device(device))
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, 0.02)
    return model.eval()


def policy(model: CausalLM) -> Policy:
    """``model`` with a tokenizer that only names the ids."""
    tokenizer = Tokenizer(models.BPE(vocab={f"t{i}": i for i in range(model.config.vocab_size)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return Policy(model, ChatTokenizer(tokenizer), model.config)


def prompts(vocab: int, count: int, length: int, seed: int = 0) -> list[list[int]]:
    """``count`` prompts of ``length`` random tokens."""
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(length)] for _ in range(count)]


def rows(vocab: int, groups: int, samples: int, prompt: int, answer: int) -> list[Row]:
    """Groups of samples that share a prompt, each answer trained. They are said to be sampled uniformly,
    which a random network comes near.
    """
    rng = random.Random(0)
    out = []
    for group, begin in enumerate(prompts(vocab, groups, prompt)):
        for sample in range(samples):
            mask, advantage = [0] * prompt + [1] * answer, rng.choice((-1.0, 1.0))
            out.append(
                Row(
                    row_id=f"{group}-{sample}",
                    rollout_id=f"{group}-{sample}",
                    policy="bench",
                    token_ids=begin + [rng.randrange(vocab) for _ in range(answer)],
                    mask=mask,
                    advantages=[advantage * m for m in mask],
                    logprobs=[-math.log(vocab) * m for m in mask],
                    weights=[m / (answer * groups * samples) for m in mask],
                    versions=[m - 1 for m in mask],
                )
            )
    return out
