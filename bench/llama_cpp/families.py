"""Small random policies of each family, and each way to split text, in llama.cpp and in agl-local."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from reader import ROOT, TEXTS, read

sys.path.insert(0, str(ROOT))

from agl_local.network.config import Arch
from agl_local.policy.folder import Policy, save_policy
from agl_local.policy.gguf_export import export_gguf
from agl_local.policy.gguf_tokenizer import SPLITS
from plugins.local.tests.engine_fixtures import trained_tokenizer
from plugins.local.tests.policy_fetch.gguf_writer import small

KINDS: tuple[tuple[Arch, bool, str], ...] = (
    ("llama", False, "llama-bpe"),
    ("llama", True, "smollm"),
    ("qwen2", False, "qwen2"),
    ("qwen3", False, "qwen2"),
    ("qwen3", True, "gpt-2"),
)
"""Family, whether the output layer is the embedding, and llama.cpp's name of the split."""
PROMPTS, LONG, LONGEST = 4, 20, 16


def differing(scratch: Path) -> list[str]:
    """Return the kinds whose greedy answers or ids of texts differ."""
    return [
        f"{arch}, {pre}"
        for arch, tied, pre in KINDS
        if not _same(scratch / f"{arch}-{pre}", _made(arch, tied, pre))
    ]


def _made(arch: Arch, tied: bool, pre: str) -> Policy:
    policy, tokenizer = small(arch, tied, seed=5), trained_tokenizer()
    tokenizer.backend.pre_tokenizer = SPLITS[pre]()
    tokenizer.backend.model.ignore_merges = pre == "llama-bpe"
    return Policy(policy.model, tokenizer, policy.config)


def _same(folder: Path, policy: Policy) -> bool:
    save_policy(policy, folder)
    export_gguf(folder, folder, "f32", {})
    generator = torch.Generator().manual_seed(1)
    size = (PROMPTS, LONG)
    prompts = torch.randint(3, policy.tokenizer.vocab_size, size, generator=generator).tolist()
    ids, answers = read(folder / "policy.gguf", TEXTS, prompts, LONGEST)
    mine = [policy.tokenizer.encode(text) for text in TEXTS]
    return ids == mine and answers == [_answer(policy, prompt) for prompt in prompts]


@torch.no_grad()
def _answer(policy: Policy, prompt: list[int]) -> list[int]:
    """The greedy answer of agl-local. llama.cpp also ends one at ``<|endoftext|>``."""
    ids, ends = list(prompt), {*policy.tokenizer.eos_ids, policy.tokenizer.special_tokens["<|endoftext|>"]}
    while len(ids) < len(prompt) + LONGEST:
        ids.append(int(policy.model(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] in ends:
            break
    return ids[len(prompt) :]
