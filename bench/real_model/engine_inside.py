"""agl-local's engine without a server."""

from __future__ import annotations

from typing import Any

import torch

from agl_local.generation.engine import Engine, Request
from agl_local.network.sampling import Sampling
from agl_local.policy.folder import load_policy

SLOTS, LENGTH = 64, 2048


class Subject:
    """Requests go in as token ids, answers come out as token ids."""

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        policy = load_policy(folder)
        self.engine = Engine(policy, slots=SLOTS, max_len=LENGTH, threads=threads)
        self.version = f"torch {torch.__version__}"

    def generate(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """Return ``new`` tokens behind each prompt, greedy; end tokens end nothing."""
        sampling = Sampling(max_tokens=new, temperature=0.0, ignore_eos=True)
        futures = [self.engine.submit(Request(prompt, sampling)) for prompt in prompts]
        return [future.result()[0].token_ids for future in futures]

    def sample(self, prompts: list[list[int]], samples: int, new: int) -> list[dict[str, Any]]:
        """Return ``samples`` answers to each prompt at temperature 1: ``ids`` and their ``logprobs``."""
        sampling = Sampling(max_tokens=new, ignore_eos=True, seed=1)
        futures = [self.engine.submit(Request(prompt, sampling, n=samples)) for prompt in prompts]
        return [
            {"ids": answer.token_ids, "logprobs": answer.logprobs}
            for future in futures
            for answer in future.result()
        ]

    def close(self) -> None:
        """End the engine's thread."""
        self.engine.close()
