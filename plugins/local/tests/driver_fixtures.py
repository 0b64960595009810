"""Small things the driver's tests share: a tiny policy, rows over it, and the plain arithmetic to compare
with.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from agentlightning.types import Row, Segment
from agl_local.network.config import ModelConfig
from agl_local.network.model import CausalLM
from agl_local.policy.folder import Policy, init_model, save_policy
from agl_local.text.tokenizer import ChatTokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|pad|>"]


def tiny_tokenizer() -> ChatTokenizer:
    """Byte-level, no merges: 256 bytes and three special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    eos = backend.token_to_id("<|im_end|>")
    return ChatTokenizer(backend, chat_template=TEMPLATE, eos_ids=[eos], config={"eos_token": "<|im_end|>"})


def tiny_config(vocab: int = 259, hidden: int = 32, positions: int = 256) -> ModelConfig:
    return ModelConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        vocab_size=vocab,
        max_positions=positions,
    )


def tiny_model(vocab: int = 29, seed: int = 0, std: float = 0.2) -> CausalLM:
    """Weights large enough that the distribution is far from uniform."""
    torch.set_num_threads(1)
    return init_model(tiny_config(vocab), seed, std=std).eval()


def tiny_policy(seed: int = 0, std: float = 0.05) -> Policy:
    tokenizer = tiny_tokenizer()
    return Policy(init_model(tiny_config(), seed, std=std).eval(), tokenizer, tiny_config())


def saved_policy(folder: Path, seed: int = 0) -> Path:
    return save_policy(tiny_policy(seed), folder)


def make_row(
    model: CausalLM,
    ids: Sequence[int],
    spans: Sequence[tuple[int, int]],
    advantages: Sequence[float] = (1.0,),
    *,
    name: str = "row",
    weight: float | None = None,
    version: int = 0,
    temperature: float = 1.0,
    allowed: dict[int, list[list[int]]] | None = None,
    shift: float = 0.0,
) -> Row:
    """A row whose logprobs are those of ``model`` minus ``shift``; span i has advantage i (the last one for
    the rest).
    """
    trained = [t for lo, hi in spans for t in range(lo, hi)]
    advantage = {
        t: advantages[min(i, len(advantages) - 1)] for i, (lo, hi) in enumerate(spans) for t in range(lo, hi)
    }
    known = reference_logprobs(model, ids, temperature, allowed or {})
    share = 1.0 / len(trained) if weight is None else weight
    size = range(len(ids))
    return Row(
        row_id=name,
        rollout_id=f"ro-{name}",
        policy="default",
        token_ids=list(ids),
        mask=[int(t in advantage) for t in size],
        advantages=[advantage.get(t, 0.0) for t in size],
        logprobs=[known[t] - shift if t in advantage else 0.0 for t in size],
        weights=[share if t in advantage else 0.0 for t in size],
        versions=[version if t in advantage else -1 for t in size],
        segments=[
            Segment(f"{name}-{i}", lo, hi, advantages[min(i, len(advantages) - 1)])
            for i, (lo, hi) in enumerate(spans)
        ],
        temperature=temperature,
        allowed=allowed or {},
    )


def reference_logprobs(
    model: CausalLM,
    ids: Sequence[int],
    temperature: float = 1.0,
    allowed: dict[int, list[list[int]]] | None = None,
) -> list[float]:
    """One whole forward pass, position by position; nothing shared with the code under test."""
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)]))[0].double() / temperature
    out = [0.0]
    for t in range(1, len(ids)):
        z = logits[t - 1].clone()
        for start, answers in (allowed or {}).items():
            so_far = list(ids[start:t])
            if t >= start and any(a[: len(so_far)] == so_far and len(a) > len(so_far) for a in answers):
                keep = {
                    a[len(so_far)] for a in answers if a[: len(so_far)] == so_far and len(a) > len(so_far)
                }
                z[[v for v in range(len(z)) if v not in keep]] = float("-inf")
        out.append(float(torch.log_softmax(z, -1)[ids[t]]))
    return out


def gradients(model: torch.nn.Module) -> torch.Tensor:
    """All gradients as one vector."""
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).norm() / b.norm())
