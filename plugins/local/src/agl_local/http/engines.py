"""The engines of one policy, one or more: started, given new weights and closed together.

Each is a process of its own, or a tenant of one that serves other policies too; once weights were published,
all map the same memory and none has a copy. Who talks to which is for the gateway to say.
Invariants: after :meth:`Engines.update` all serve the same version; whatever was begun is closed by
:meth:`Engines.close`, also where one of them did not start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from agentlightning.types import LLM
from agl_local.generation.orders import PauseMode
from agl_local.generation.request import EngineError
from agl_local.http.child import Child
from agl_local.http.process import EngineProcess, Tenant
from agl_local.http.vllm_engine import VllmEngine, for_vllm
from agl_local.network.model import LanguageModel
from agl_local.policy.folder import published
from agl_local.policy.shared import Handover, SharedWeights
from agl_local.policy.weights import State

T = TypeVar("T")


class Serving(Protocol):
    """What is asked of an engine, wherever it runs."""

    @property
    def address(self) -> str: ...
    def start(self) -> str: ...
    def update(self, handover: Handover, version: int, mode: PauseMode = "drain") -> int: ...
    def close(self) -> None: ...


class Engines:
    """``each``: the engines, not started; they were given ``weights``, and ``token`` as the API key that they
    want.
    """

    def __init__(self, each: Sequence[Serving], weights: SharedWeights, token: str | None = None) -> None:
        self.each = list(each)
        self.weights = weights
        self._token = token

    def start(self) -> None:
        """Start all, at a time. Raises what the first of those raised that did not start."""
        self._all(lambda engine: engine.start())

    def llm(self, name: str) -> LLM:
        """Where they are once they are started, and their key; each serves the policy under ``name``."""
        first, *others = (f"{engine.address}/v1" for engine in self.each)
        return LLM(
            endpoint=first, replicas=others, model=name, api_key=self._token, logprobs_mode="processed"
        )

    def wanted(self, model: LanguageModel) -> State:
        """What is sent of ``model`` by :meth:`update`."""
        return for_vllm(model) if isinstance(self.each[0], VllmEngine) else published(model)

    def update(
        self,
        tensors: Mapping[str, Tensor],
        version: int,
        mode: PauseMode = "drain",
        constant: Collection[str] = (),
    ) -> int:
        """Publish ``tensors`` (:meth:`wanted`) to all; the version that they serve then. ``mode``:
        what becomes of calls under way (``engine.Engine.load_weights``). ``constant``: names of those that
        never change (``policy.folder.constant``).
        """
        with self.weights.publish(tensors, constant) as handover:
            served = self._all(lambda engine: engine.update(handover, version, mode))
            if len(set(served)) > 1:
                raise EngineError(f"the engines of one policy serve different versions: {served}")
        return served[0]

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Inside, engines that can give the memory of their device to the trainer; their calls wait."""
        sleepers = [engine for engine in self.each if isinstance(engine, VllmEngine) and engine.sleeps]
        for engine in sleepers:
            engine.sleep()
        try:
            yield
        finally:
            if sleepers:
                torch.cuda.empty_cache()  # torch keeps what it has freed
            for engine in sleepers:
                engine.wake_up()

    def pids(self) -> dict[str, int]:
        """Names and ids of our engines that are processes of their own."""
        each = map(_child, self.each)
        found = [child.pid for child in each if isinstance(child, EngineProcess) and child.alive()]
        return {f"engine {i + 1}" if len(found) > 1 else "engine": pid for i, pid in enumerate(found)}

    def died(self) -> str | None:
        """How one of those that are processes ended by itself; ``None``: all run."""
        found = (child.died() for child in map(_child, self.each) if child is not None)
        return next((how for how in found if how is not None), None)

    def copy_log(self, folder: Path) -> None:
        """Write what a vLLM has said to ``vllm.log``: the cause of what it dies of stands before its end."""
        for engine in self.each:
            if isinstance(engine, VllmEngine):
                engine.copy_log(folder / "vllm.log")

    def close(self) -> None:
        """End all. Idempotent."""
        try:
            self._all(lambda engine: engine.close())
        finally:
            self.weights.close()

    def _all(self, do: Callable[[Serving], T]) -> list[T]:
        """``do`` with each, at a time, and only then say what failed."""
        if len(self.each) == 1:
            return [do(self.each[0])]
        with ThreadPoolExecutor(len(self.each), thread_name_prefix="engines") as pool:
            asked: list[Any] = [pool.submit(do, engine) for engine in self.each]
        return [one.result() for one in asked]


def _child(engine: Serving) -> Child | None:
    """The process that ``engine`` is in, if that is not ours."""
    served = engine.process if isinstance(engine, Tenant) else engine
    return served if isinstance(served, Child) else None
