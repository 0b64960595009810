"""agl-local's engine as runs use it: a process of its own, asked over HTTP, one request a prompt."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import torch

from agl_local.http.process import EngineProcess

SLOTS, LENGTH = 64, 2048


class Subject:
    """A server and a client, whose requests for completions carry token ids."""

    def __init__(self, folder: str, threads: int) -> None:
        self.server = EngineProcess(folder, threads=threads, slots=SLOTS, max_len=LENGTH)
        address = self.server.start()
        self.client = httpx.Client(
            base_url=address, timeout=300.0, limits=httpx.Limits(max_connections=SLOTS)
        )
        self.pool = ThreadPoolExecutor(SLOTS)
        self.version = f"torch {torch.__version__}"

    def generate(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        """Return ``new`` tokens behind each prompt, greedy; end tokens end nothing."""
        body = {"model": "policy", "max_tokens": new, "temperature": 0, "ignore_eos": True}

        def ask(prompt: list[int]) -> list[int]:
            answer = self.client.post(
                "/v1/completions", json={**body, "prompt": prompt, "return_token_ids": True}
            )
            answer.raise_for_status()
            ids: list[int] = answer.json()["choices"][0]["token_ids"]
            return ids

        return list(self.pool.map(ask, prompts))

    def close(self) -> None:
        """End server and client."""
        self.client.close()
        self.server.close()
        self.pool.shutdown()
