"""Saved weights that answer: an engine for each, made when it is first asked.

An engine holds a merged copy of the base's weights. So the newest few that were asked are in memory, and one
that is needed again is made again from its file. Invariant: what a sampling session answers with never
changes: the weights are those of its path, or the base's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agentlightning.types.base import RequestRefused
from agl_local.generation.engine import Engine
from agl_local.generation.request import Completion, EngineError, PromptTooLong, Request
from agl_local.network.layout import realise
from agl_local.network.model import LanguageModel
from agl_local.network.sampling import Sampling
from agl_local.policy.folder import Policy, load_state, state
from agl_tinker.server.adapter import Adapter, LoraConfig, prompt_logprobs
from agl_tinker.server.models import read_state, saved_at


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """``sampling_params`` of ``asample``. ``stop``: texts, or ids of tokens beside the policy's own end
    tokens; an empty list: nothing ends the answer but its length.
    """

    max_tokens: int | None = None
    seed: int | None = None
    stop: str | list[int | str] | None = None
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``asample``. Fields that ask for what is not here are refused with their names."""

    prompt: dict[str, Any]
    sampling_params: SamplingParams
    num_samples: int = 1
    sampling_session_id: str | None = None
    base_model: str | None = None
    model_path: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_sample_logprobs: int = 0
    topk_prompt_logprobs: int = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None

    def tokens(self) -> list[int]:
        """The prompt's tokens, of all its chunks. Raises RequestRefused."""
        chunks = self.prompt.get("chunks")
        texts = [chunk.get("tokens") for chunk in chunks] if isinstance(chunks, list) else [None]
        found: list[int] = []
        for text in texts:
            if not isinstance(text, list):
                raise RequestRefused(
                    400, "not-text", "a chunk of the prompt is no text: only text is sampled"
                )
            found += [int(token) for token in text]
        return found

    def check(self) -> None:
        """Raise RequestRefused for a field that would be ignored."""
        for name in (
            "topk_prompt_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k", "record_stability_info",
        ):  # fmt: skip
            if getattr(self, name):
                raise RequestRefused(400, "not-here", f"{name} is not offered by this server")


@dataclass(frozen=True)
class Served:
    """An engine, and the network with the same weights for logprobs of prompts."""

    engine: Engine
    network: LanguageModel


class Samplers:
    """Engines of ``slots`` conversations of at most ``max_len`` tokens each, at most ``most`` at a time
    unless more are busy. What computes beside them runs in ``worker``.
    """

    def __init__(
        self, root: Path, base: Policy, worker: Executor, *, most: int, slots: int, max_len: int | None
    ) -> None:
        self.root, self.base, self.worker = root, base, worker
        self.most, self.slots = most, slots
        self.max_len = min(max_len or 2048, base.config.max_positions)
        self._served: OrderedDict[str, asyncio.Task[Served]] = OrderedDict()

    async def answer(self, path: str, asked: Sample) -> tuple[list[Completion], list[float] | None]:
        """The completions, and the prompt's logprobs if they are asked for. ``path``: of saved weights;
        empty: the base. Raises RequestRefused.
        """
        prompt = asked.tokens()
        request = Request(prompt, self._sampling(asked, len(prompt)), asked.num_samples)
        while True:
            served = await self._get(path)
            try:
                future = served.engine.submit(request)
                break
            except (PromptTooLong, ValueError) as error:
                raise RequestRefused(400, "sample", str(error)) from None
            except EngineError:  # it was closed to make room, just now
                if path in self._served:
                    raise
        completions = await asyncio.wrap_future(future)
        if not asked.prompt_logprobs:
            return completions, None
        loop = asyncio.get_running_loop()
        known = await loop.run_in_executor(self.worker, prompt_logprobs, served.network, prompt)
        if (last := asked.prompt_logprobs_last_n) is not None:
            hidden = max(0, len(known) - last)
            known[:hidden] = [float("nan")] * hidden
        return completions, known

    def close(self) -> None:
        """Stop all engines."""
        for task in self._served.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().engine.close()

    def _sampling(self, asked: Sample, size: int) -> Sampling:
        given = asked.sampling_params
        stop = [given.stop] if isinstance(given.stop, str) else given.stop
        texts = tuple(text for text in stop or () if isinstance(text, str))
        room = max(1, self.max_len - size)
        try:
            return Sampling(
                max_tokens=room if given.max_tokens is None else min(given.max_tokens, room),
                temperature=given.temperature,
                top_p=given.top_p,
                top_k=given.top_k,
                seed=given.seed,
                stop=texts,
                stop_ids=tuple(token for token in stop or () if isinstance(token, int)),
                ignore_eos=stop == [],
                top_logprobs=asked.topk_sample_logprobs,
            )
        except ValueError as error:
            raise RequestRefused(400, "sampling-params", str(error)) from None

    async def _get(self, path: str) -> Served:
        if path not in self._served:
            file = saved_at(self.root, path) if path else None
            self._served[path] = asyncio.ensure_future(self._made(file))
            self._make_room(path)
        self._served.move_to_end(path)
        try:
            return await asyncio.shield(self._served[path])
        except Exception:
            self._served.pop(path, None)
            raise

    async def _made(self, file: Path | None) -> Served:
        return await asyncio.get_running_loop().run_in_executor(self.worker, self._make, file)

    def _make(self, file: Path | None) -> Served:
        network = self.base.model
        if file is not None:
            saved = read_state(file)
            adapter = Adapter(self.base, msgspec.json.decode(saved["config"], type=LoraConfig))
            adapter.load(saved, optimizer=False)
            network = adapter.network.requires_grad_(False)
        own = realise(self.base.model, self.base.model.dtype, self.base.model.device)
        load_state(own, state(network))
        policy = Policy(own, self.base.tokenizer, self.base.config)
        engine = Engine(policy, keep=False, slots=self.slots, max_len=self.max_len)
        return Served(engine, network)

    def _make_room(self, new: str) -> None:
        """Close the engines that were asked longest ago, but for those that are busy."""
        for path, task in list(self._served.items()):
            if len(self._served) <= self.most:
                return
            if path == new or not task.done():
                continue
            del self._served[path]
            if task.exception() is None:
                served = task.result()
                status = served.engine.status()
                if status["running"] or status["waiting"]:
                    self._served[path] = task
                else:
                    served.engine.close()
