"""A sampling client as the engine behind agl-local's OpenAI routes.

So the chat template, the tool parser, stop texts and the form of answers are those of the local engine; what
is remote is the drawing of tokens. Invariants: ids and logprobs of an answer are the server's, untouched; its
version is that of the weights that were asked; what the API cannot do is refused by name, never left out.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from agentlightning.types import LLM
from agl_local.generation.engine import Engine
from agl_local.generation.request import (
    Completion,
    EngineError,
    FinishReason,
    PromptTooLong,
    Request,
    TokenEvent,
)
from agl_local.generation.stats import Stats
from agl_local.http.app import create_app, serve
from agl_local.network.config import read_json
from agl_local.network.sampling import Sampling, random_bits
from agl_local.policy.folder import read_tokenizer
from agl_local.serving import refuse_without_template
from agl_local.text.grammar import GrammarCompiler
from agl_local.text.textstream import TextStream
from agl_tinker.client import Client, ServerError, done
from agl_tinker.options import Options

_SEEDS = 2**31
"""Servers take seeds of 31 bits."""
_log = logging.getLogger(__name__)


class RemoteEngine:
    """What agl-local's routes ask of an ``Engine``, for the policy folder ``path``, which needs no weights.
    Made and used on one event loop.
    """

    def __init__(self, path: Path, name: str, options: Options, client: Client) -> None:
        config = read_json(path / "config.json")
        text = config.get("text_config") or config
        self.name, self.version = name, 0
        self.tokenizer = read_tokenizer(path)
        refuse_without_template(self.tokenizer, path)
        self.eos_ids = self.tokenizer.eos_ids
        self.vocab_size = int(text["vocab_size"])
        self.max_len = options.max_len or int(text["max_position_embeddings"])
        self._most = options.max_tokens or self.max_len
        self.grammars = GrammarCompiler(self.tokenizer, self.vocab_size)
        self.stats = Stats()
        self.counts: Counter[str] = Counter()
        """``prefill_tokens`` and ``sampled_tokens`` that were asked of the server, and answers ``unended``:
        the server says that a stop ended them, and they hold none, so their end cannot be learned.
        """
        self._client = client
        self._sampler: Any = None
        self._room = asyncio.Semaphore(options.max_num_seqs)
        self._loop = asyncio.get_running_loop()
        self._runner: web.AppRunner | None = None

    async def start(self, sampler: Any) -> LLM:
        """Serve on loopback what ``sampler`` draws."""
        self._sampler = sampler
        token = secrets.token_urlsafe(32)
        app = create_app({self.name: cast(Engine, self)}, token=token)
        self._runner, address = await serve(app)
        return LLM(
            endpoint=f"{address}/v1", model=self.name, api_key=token, vocabulary=self.vocab_size,
            context=self.max_len, logprobs_mode="processed",
        )  # fmt: skip

    def publish(self, sampler: Any, version: int) -> None:
        """Ask ``sampler`` from now on. Calls under way keep the one before, and count as its version."""
        self._sampler, self.version = sampler, version

    async def close(self) -> None:
        """Stop serving. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def submit(self, request: Request) -> Future[list[Completion]]:
        """Ask the server; as ``Engine.submit``."""
        refuse(request.sampling)
        size = len(request.prompt)
        if not size or min(request.prompt) < 0 or max(request.prompt) >= self.vocab_size:
            raise ValueError(f"a prompt must have at least one token, with ids in 0..{self.vocab_size - 1}")
        if size >= self.max_len:
            raise PromptTooLong(
                f"the prompt has {size} tokens; this policy holds {self.max_len} with the answer"
            )
        self.stats.requests += 1
        work: Coroutine[Any, Any, list[Completion]] = self._answer(request, self._sampler, self.version)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def status(self) -> dict[str, Any]:
        """Version and counts."""
        return {"version": self.version, "paused": None, "closed": None, **vars(self.stats), **self.counts}

    async def _answer(self, request: Request, sampler: Any, version: int) -> list[Completion]:
        s = request.sampling
        seed = random_bits(31) if s.seed is None else s.seed
        async with self._room:
            try:
                answer = await done(
                    self._client.sample(
                        sampler,
                        request.prompt,
                        request.n,
                        max_tokens=min(s.max_tokens, self._most, self.max_len - len(request.prompt)),
                        temperature=s.temperature,
                        top_p=s.top_p,
                        top_k=s.top_k if s.top_k > 0 else -1,
                        seed=seed % _SEEDS,
                        stop=[] if s.ignore_eos else list(self.eos_ids),
                        alternatives=s.top_logprobs,
                    )
                )
            except ServerError as error:
                self.stats.failed += 1
                raise EngineError(str(error)) from error
        self.counts["prefill_tokens"] += len(request.prompt)
        self.counts["sampled_tokens"] += sum(len(one.tokens) for one in answer.sequences)
        found = [self._completion(i, one, request, version, seed) for i, one in enumerate(answer.sequences)]
        self.stats.finished += len(found)
        return found

    def _completion(self, index: int, answer: Any, request: Request, version: int, seed: int) -> Completion:
        """The answer up to its end: an end token, or the token that completes a stop text."""
        ids, logprobs = list(answer.tokens), answer.logprobs
        if logprobs is None or len(logprobs) != len(ids):
            raise EngineError(f"the server gave {len(ids)} tokens and {len(logprobs or ())} logprobs")
        text = TextStream(self.tokenizer, request.sampling.stop)
        pieces: list[str] = []
        reason: FinishReason | None = None
        kept: list[int] = []
        for token in ids:
            kept.append(int(token))
            ended = token in self.eos_ids and not request.sampling.ignore_eos
            pieces.append("" if ended else text.push(int(token)))
            if ended or text.stopped_by is not None:
                reason = "stop"
                break
        pieces[-1:] = [(pieces[-1] if pieces else "") + text.finish()]
        if reason is None and answer.stop_reason == "stop" and text.stopped_by is None:
            self.counts["unended"] += 1
            if self.counts["unended"] == 1:
                _log.warning("policy %r: the server's answers lack the token that ends them", self.name)
        reason = reason or (
            "stop" if text.stopped_by is not None or answer.stop_reason == "stop" else "length"
        )
        self.stats.generated_tokens += len(kept)
        numbers = [float(value) for value in logprobs[: len(kept)]]
        others = getattr(answer, "topk_logprobs", None) if request.sampling.top_logprobs else None
        top = [list(others[i] or ()) if others else [] for i in range(len(kept))]
        watcher = request.on_token
        for i, token in enumerate(kept if watcher is not None else ()):
            assert watcher is not None
            last = (reason, text.stopped_by) if i == len(kept) - 1 else (None, None)
            watcher(TokenEvent(index, token, numbers[i], top[i], pieces[i], version, *last))
        return Completion(
            index, kept, numbers, top, "".join(pieces), reason, text.stopped_by,
            [version] * len(kept), 0, seed,
        )  # fmt: skip


def refuse(sampling: Sampling) -> None:
    """Raise ValueError for what the API has no word for."""
    asked = {
        "frequency_penalty": sampling.frequency_penalty != 0,
        "presence_penalty": sampling.presence_penalty != 0,
        "repetition_penalty": sampling.repetition_penalty != 1,
        "min_tokens": sampling.min_tokens > 0,
        "logit_bias": bool(sampling.logit_bias),
        "guided_choice": sampling.guided_choice is not None,
        "structured output or a forced tool": sampling.grammar is not None,
    }
    if found := [name for name, used in asked.items() if used]:
        raise ValueError(
            f"{', '.join(found)}: the Tinker API has no such setting; leave it out for this policy"
        )
