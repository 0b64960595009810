"""New weights, from verl's training worker to the engine: gathered tensor by tensor, sent as safetensors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import ray
import torch
from safetensors.torch import save
from verl.workers.rollout.base import BaseRollout

from agl_verl.inside.serving.replica import server_name


class EmbeddedWeights(BaseRollout):  # type: ignore[misc]
    """What a training worker knows of the engines. Every rank helps to gather; those that have an engine of
    their number send, each to its own.
    """

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], wire_format: str = "named_tensors", **given: Any
    ) -> None:
        """Load ``weights`` as version ``global_steps``, and return when it is served."""
        if wire_format != "named_tensors":
            raise ValueError(f"the embedded engine takes whole tensors, not {wire_format!r}")
        rank = int(os.environ.get("RANK", "0"))
        sends = rank < self.config.engine_kwargs["embedded"]["engines"]
        state = {
            name: tensor.detach().cpu().float().contiguous()
            for name, tensor in weights
            if sends or _gather(tensor)
        }
        if sends:
            server = ray.get_actor(server_name(rank))
            loaded = server.load.remote(save(state), int(given.get("global_steps") or 0))
            await asyncio.to_thread(ray.get, loaded)


def _gather(tensor: torch.Tensor) -> bool:
    """Take part in making ``tensor`` whole (that is done by having it), and do not keep it."""
    return False
