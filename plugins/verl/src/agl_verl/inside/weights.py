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

from agl_verl.inside.replica import server_name


class EmbeddedWeights(BaseRollout):  # type: ignore[misc]
    """What a training worker knows of the engine. Every rank helps to gather; the first one sends."""

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], wire_format: str = "named_tensors", **given: Any
    ) -> None:
        """Load ``weights`` as version ``global_steps``, and return when it is served."""
        if wire_format != "named_tensors":
            raise ValueError(f"the embedded engine takes whole tensors, not {wire_format!r}")
        first = int(os.environ.get("RANK", "0")) == 0
        state = {
            name: tensor.detach().cpu().float().contiguous()
            for name, tensor in weights
            if first or _gather(tensor)
        }
        if first:
            server = ray.get_actor(server_name(0))
            loaded = server.load.remote(save(state), int(given.get("global_steps") or 0))
            await asyncio.to_thread(ray.get, loaded)


def _gather(tensor: torch.Tensor) -> bool:
    """Take part in making ``tensor`` whole (that is done by having it), and do not keep it."""
    return False
