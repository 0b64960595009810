"""Continuous batching of one policy over a key-value cache: requests join and leave at any step.

One thread runs the network (``loop``); everybody else talks to it through ``submit``, ``pause``, ``resume``
and ``load_weights``. Invariants: a request's tokens and log probabilities depend on its prompt, sampling
settings, seed and the weights only, not on neighbours, arrival order or what was cached (to float32's
rounding; bit for bit when ``deterministic``); the engine's weights change in ``load_weights`` alone; every
request ends, with an answer or an exception, whatever happens in the thread.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from agl_local.generation.choices import AT_ONCE
from agl_local.generation.confined import Logits
from agl_local.generation.loop import EngineLoop
from agl_local.generation.orders import Order, PauseMode, pause_mode
from agl_local.generation.passes import Batched, Passes
from agl_local.generation.request import (
    Completion,
    EngineError,
    FinishReason,
    Group,
    PromptTooLong,
    Request,
    Sample,
    TokenEvent,
)
from agl_local.generation.sampler import Drawn
from agl_local.generation.stats import Stats
from agl_local.generation.tiled import Tiled
from agl_local.network.layout import Layout, realise
from agl_local.network.lora import Lora, adapt
from agl_local.network.product import free_blocks
from agl_local.network.sampling import allowed_next, random_bits
from agl_local.policy.folder import Policy, check_state, load_state, published
from agl_local.text.grammar import GrammarCompiler, GrammarState
from agl_local.text.textstream import TextStream

MAX_SAMPLES = 256

__all__ = ["Completion", "Engine", "EngineError", "PauseMode", "PromptTooLong", "Request", "TokenEvent"]


class Engine:
    """Serves one policy. ``slots`` conversations are held and run at a time, of at most ``max_len`` tokens
    each. ``threads``: cores for torch in the engine's thread (None: as torch is set; see ``pool``).
    ``deterministic``: tokens and log probabilities are the same bits whatever else is served (see ``tiled``).

    ``keep``: the engine takes a copy of the policy's network; False: the network itself, which nobody else
    may use from then on. ``lora``: beside a base that stays as it is (``LanguageModel.fixed``), the adapters
    whose matrices are its weights to load (``policy.folder.published``); as long as there are none, it serves
    the base. ``loop``: the one that it shares with other engines (None: it has its own, of ``threads``).

    Raises NotInvariant where ``deterministic`` cannot be promised.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        keep: bool = True,
        lora: Lora | None = None,
        slots: int = 64,
        max_len: int | None = None,
        name: str = "policy",
        version: int = 0,
        threads: int | None = None,
        deterministic: bool = False,
        loop: EngineLoop | None = None,
    ) -> None:
        if slots < 1:
            raise ValueError(f"slots must be at least 1, got {slots}")
        self.name = name
        self.version = version
        self.tokenizer = policy.tokenizer
        self.eos_ids = policy.tokenizer.eos_ids
        self.vocab_size = policy.config.vocab_size
        self.grammars = GrammarCompiler(policy.tokenizer, policy.config.vocab_size)
        self.max_len = min(max_len or 2048, policy.config.max_positions)
        self.stats = Stats()
        model = policy.model
        self._model = (realise(model, model.dtype, model.device) if keep else model).eval()
        if lora is not None:
            adapt(self._model, lora, seed=0)
            self._model.to(self._model.dtype)
        self._model.requires_grad_(False)
        if not self._model.shared:
            self._model.pack()
        way = Tiled if deterministic else Batched
        self._passes: Passes = way(self._model, slots, self.max_len, self.stats, self.eos_ids)
        self._table = self._passes.table
        self._waiting: deque[Sample] = deque()
        self._running: list[Sample] = []
        self._orders: deque[Order] = deque()
        self._paused: PauseMode | None = None
        self._closed: str | None = None
        self._ended = threading.Event()
        self._loop = loop or EngineLoop(f"engine-{name}", threads)
        self._wake = self._loop.wake
        self._loop.join(self, self._passes.check)

    # ---- for everybody

    def submit(self, request: Request) -> Future[list[Completion]]:
        """Queue a request; cancelling the future frees its slots.

        Raises PromptTooLong or ValueError for a request that cannot be served, EngineError when closed.
        """
        self._check(request)
        future: Future[list[Completion]] = Future()
        seed = request.sampling.seed
        group = Group(request, random_bits(63) if seed is None else seed, future)
        limit = min(request.sampling.max_tokens, self.max_len - len(request.prompt))
        samples = [
            Sample(group, i, limit, TextStream(self.tokenizer, request.sampling.stop), grammar)
            for i, grammar in enumerate(self._grammars_of(request))
        ]
        with self._wake:
            self._refuse_if_closed()
            self._waiting.extend(samples)
            self.stats.requests += 1
            self._wake.notify()
        future.add_done_callback(lambda done: self._cancelled(group, done) if done.cancelled() else None)
        return future

    async def generate(self, request: Request) -> list[Completion]:
        """``submit`` for asyncio; cancelling the task cancels the request."""
        return await asyncio.wrap_future(self.submit(request))

    def load_weights(
        self,
        tensors: Mapping[str, Tensor],
        version: int,
        mode: PauseMode = "drain",
        timeout: float | None = None,
    ) -> int:
        """Replace the weights between two steps and return the new version; the prefix cache is dropped.

        ``drain`` lets running requests finish first. ``hold`` stops them where they are and goes on with
        the new weights (what they have is computed again; their completions show both versions). During a
        hold pause it is always hold. Waiting requests start with the new weights. Raises StateError
        (nothing changed), ValueError for a version below the present one, TimeoutError.
        """
        return self.submit_weights(tensors, version, mode).result(timeout)

    def submit_weights(
        self, tensors: Mapping[str, Tensor], version: int, mode: PauseMode = "drain"
    ) -> Future[int]:
        """``load_weights`` without waiting; ``tensors`` are copied, and may change afterwards."""
        how = self._how(mode)
        check_state(self._model, tensors, f"weights of version {version}")
        layout = Layout({name: p.shape for name, p in published(self._model).items()}, self._model.dtype)
        block = torch.empty(layout.size, dtype=torch.uint8, device=self._model.device)
        layout.fill(block, tensors)
        return self._order(Order(how, Future(), layout.views(block), version))

    def submit_shared(
        self, tensors: Mapping[str, Tensor], version: int, mode: PauseMode = "drain"
    ) -> Future[int]:
        """As ``submit_weights`` for ``tensors`` that nobody changes for as long as they are served (see
        ``policy.shared``): on the CPU, and of the engine's type, they are not copied.
        """
        how = self._how(mode)
        check_state(self._model, tensors, f"weights of version {version}")
        return self._order(Order(how, Future(), tensors, version))

    def make_room(self) -> None:
        """Free what the next pass makes again, before new weights come beside the present ones."""
        if not self._model.shared:
            free_blocks(self._model)

    def pause(self, mode: PauseMode = "drain") -> Future[int]:
        """Start no new requests; resolved when running ones have finished (drain) or stand still (hold)."""
        how = self._how(mode)
        with self._wake:
            self._paused = how
        return self._order(Order(how, Future()))

    def resume(self) -> None:
        """End a pause."""
        with self._wake:
            self._paused = None
            self._wake.notify()

    def status(self) -> dict[str, Any]:
        """Version, pause, queue lengths and counts."""
        with self._wake:
            lengths = {"running": len(self._running), "waiting": len(self._waiting)}
            return {
                "version": self.version,
                "paused": self._paused,
                "closed": self._closed,
                **lengths,
                **vars(self.stats),
            }

    def close(self, timeout: float = 10.0) -> None:
        """Stop computing; requests that have not finished fail with EngineError. Idempotent."""
        with self._wake:
            thread = self._loop.thread
            self._closed = self._closed or "it was closed"
            self._wake.notify()
        if threading.current_thread() is not thread:
            self._ended.wait(timeout)
            if thread is not None and self._loop.thread is not thread:  # it was the last
                thread.join(timeout)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check(self, request: Request) -> None:
        size, s = len(request.prompt), request.sampling
        if not 1 <= request.n <= MAX_SAMPLES:
            raise ValueError(f"n must be in 1..{MAX_SAMPLES}, got {request.n}")
        if not size:
            raise ValueError("the prompt is empty: at least one token is needed")
        if size >= self.max_len:
            raise PromptTooLong(
                f"the prompt has {size} tokens; this engine holds {self.max_len} for prompt and answer, "
                f"so a prompt may have at most {self.max_len - 1}"
            )
        named = [*request.prompt, *(s.logit_bias or ()), *(t for c in s.guided_choice or () for t in c)]
        if min(named) < 0 or max(named) >= self.vocab_size:
            raise ValueError(f"token ids must be in 0..{self.vocab_size - 1}, got {min(named)}..{max(named)}")

    def _grammars_of(self, request: Request) -> list[GrammarState | None]:
        """The state of each answer in the request's grammar."""
        grammar = request.sampling.grammar
        return [None if grammar is None else self.grammars.start(grammar) for _ in range(request.n)]

    def _how(self, mode: str) -> PauseMode:
        """``mode``, if this thread may give orders. Raises EngineError or ValueError."""
        if threading.current_thread() is self._loop.thread:
            raise EngineError(
                "a token callback cannot pause or update its own engine: it would wait for itself"
            )
        self._refuse_if_closed()
        return pause_mode(mode)

    def _order(self, order: Order) -> Future[int]:
        with self._wake:
            self._refuse_if_closed()
            self._orders.append(order)
            self._wake.notify()
        return order.done

    def _refuse_if_closed(self) -> None:
        if self._closed is not None:
            raise EngineError(f"engine {self.name!r} does not run: {self._closed}")

    def _cancelled(self, group: Group, future: Future[list[Completion]]) -> None:
        group.over = True
        # Tells those in concurrent.futures.wait: they do not hear of a cancellation otherwise.
        future.set_running_or_notify_cancel()
        with self._wake:
            self.stats.cancelled += 1
            self._wake.notify()

    # ---- the engine's thread

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def has_work(self) -> bool:
        """As every ``loop.InLoop``."""
        if self._running and self._paused != "hold":
            return True
        if self._orders or (self._waiting and self._paused is None):
            return True
        return any(s.group.over for s in self._running) or any(s.group.over for s in self._waiting)

    def step(self) -> None:
        """Sweep the cancelled, carry out orders, admit, and one decode step."""
        self._sweep()
        while self._orders and (not self._running or "hold" in (self._orders[0].mode, self._paused)):
            self._carry_out(self._orders.popleft())
        admitting: list[Sample] = []
        try:
            if not self._orders and self._paused is None:
                chosen, slotted = self._take_waiting()
                admitting = [*chosen, *slotted]
                self._choose(chosen)
                for samples, logits in self._passes.prefill(slotted):
                    self._running.extend(samples)
                    if logits is not None:
                        self._emit(samples, logits)
            if self._running and self._paused != "hold":
                self._decode()
        except Exception as error:
            self._recover(admitting, error)

    def _sweep(self) -> None:
        for sample in [s for s in self._running if s.group.over]:
            self._drop(sample)
        with self._wake:
            if any(s.group.over for s in self._waiting):
                self._waiting = deque(s for s in self._waiting if not s.group.over)

    def _choose(self, samples: list[Sample]) -> None:
        """Give ``samples``, which need no slot, all of their tokens."""
        self._running.extend(samples)
        while samples:
            assert self._passes.choices is not None
            self._emit(samples, self._passes.choices.logits(samples))
            running = {*self._running}
            samples = [s for s in samples if s in running and not s.group.over]

    def _take_waiting(self) -> tuple[list[Sample], list[Sample]]:
        """Take samples that one pass decides, and as many others as there is room for."""
        choices, room = self._passes.choices, self._table.idle
        chosen: list[Sample] = []
        slotted: list[Sample] = []
        left: deque[Sample] = deque()
        with self._wake:
            for sample in self._waiting:
                if choices is not None and len(chosen) < AT_ONCE and choices.serves(sample):
                    chosen.append(sample)
                elif len(slotted) < room:
                    slotted.append(sample)
                else:
                    left.append(sample)
            self._waiting = left
        return chosen, slotted

    def _decode(self) -> None:
        # What was cancelled or has failed since the sweep may have no token to feed.
        samples = sorted((s for s in self._running if not s.group.over), key=lambda s: s.slot)
        if not samples:
            return
        self._emit(samples, self._passes.decode(samples))

    def _emit(self, samples: list[Sample], logits: Logits) -> None:
        drawn = self._passes.draw(logits, samples, self.eos_ids)
        for i, sample in enumerate(samples):
            if sample.group.over:
                continue
            if not math.isfinite(drawn.logprobs[i]):
                at = f"token {len(sample.tokens)}, version {self.version}"
                why = (
                    f"the network gave no finite logits ({at}): `agl policy check FOLDER` names weights "
                    "that are not finite"
                )
                self._fail(sample, EngineError(why))
                continue
            try:
                self._append(sample, drawn, i)
            except Exception as error:
                self._fail(sample, EngineError(f"the token callback failed: {error!r}"))

    def _append(self, sample: Sample, drawn: Drawn, row: int) -> None:
        token = drawn.tokens[row]
        sample.tokens.append(token)
        sample.logprobs.append(drawn.logprobs[row])
        sample.top.append(drawn.top[row])
        sample.versions.append(self.version)
        self.stats.generated_tokens += 1
        s = sample.sampling
        ended = (token in self.eos_ids and not s.ignore_eos) or token in s.stop_ids
        if not (ended or sample.watched or sample.adjusted) and len(sample.tokens) < sample.limit:
            return
        text = sample.text.push(token) if sample.watched and not ended else ""
        reason = self._reason(sample, ended)
        if reason is not None:
            if not sample.watched:
                text = sample.text.push_all(sample.tokens[: -1 if ended else None])
            text += sample.text.finish()
            if sample.text.stopped_by is not None:
                reason = "stop"
        if text:
            sample.pieces.append(text)
        # A stop string may also complete in the very last piece of text that was held back.
        self._report(sample, text, reason, sample.text.stopped_by)

    def _reason(self, sample: Sample, ended: bool) -> FinishReason | None:
        guided = sample.sampling.guided_choice
        complete = guided is not None and not allowed_next(guided, sample.tokens, self.eos_ids)
        if ended or complete or sample.text.stopped_by is not None:
            return "stop"
        return "length" if len(sample.tokens) >= sample.limit else None

    def _report(
        self, sample: Sample, text: str, reason: FinishReason | None, stop_reason: str | None
    ) -> None:
        watcher = sample.group.request.on_token
        if watcher is not None:
            last = (sample.tokens[-1], sample.logprobs[-1], sample.top[-1])
            watcher(TokenEvent(sample.index, *last, text, self.version, reason, stop_reason))
        if reason is not None:
            self._drop(sample)
            self.stats.finished += 1
            sample.group.complete(sample.completion(reason, stop_reason))

    def _drop(self, sample: Sample, valid: bool = True) -> None:
        self._running.remove(sample)
        if sample.slot >= 0:
            self._table.release(sample, valid)

    def _fail(self, sample: Sample, error: Exception) -> None:
        """Fail the whole request of ``sample``; its other samples are swept before the next step."""
        self._drop(sample, valid=False)
        if not sample.group.over:
            self.stats.failed += 1
        sample.group.fail(error)

    def _recover(self, admitting: list[Sample], error: Exception) -> None:
        """A step has failed: what ran in it fails, the cache starts afresh, waiting requests go on."""
        failure = EngineError(f"a step of engine {self.name!r} failed: {error!r}")
        failure.__cause__ = error
        for sample in {*self._running, *admitting}:
            if not sample.group.over:
                self.stats.failed += 1
            sample.group.fail(failure)
        self._running.clear()
        self._table.clear()

    def _carry_out(self, order: Order) -> None:
        if not order.done.set_running_or_notify_cancel():
            return
        try:
            if order.tensors is not None:
                self._replace(order.tensors, order.version)
        except Exception as error:
            order.done.set_exception(error)
        else:
            order.done.set_result(self.version)

    def _replace(self, tensors: Mapping[str, Tensor], version: int) -> None:
        if version < self.version:
            raise ValueError(f"version {version} is below the present version {self.version}")
        self._take(tensors)
        self._table.forget()
        if self._passes.choices is not None:
            self._passes.choices.forget()
        # What still runs (hold) starts again from a prefill of its tokens, ahead of the waiting ones.
        for sample in sorted(self._running, key=lambda s: s.slot, reverse=True):
            self._table.release(sample)
            sample.repack()
            self._waiting.appendleft(sample)
        self._table.forget()
        self._running.clear()
        self.version = version

    def _take(self, tensors: Mapping[str, Tensor]) -> None:
        """Compute with ``tensors``: on a CPU in place of the old ones, where they can be used as they are. On
        a device they are copied: captured steps read parameters where they are.
        """
        own = published(self._model)
        if all(
            tensors[n].dtype == p.dtype and tensors[n].device.type == p.device.type == "cpu"
            for n, p in own.items()
        ):
            for name, parameter in self._model.weights.named_parameters():
                if name in own:
                    parameter.data = tensors[name]
        else:
            load_state(self._model, tensors)
        if not self._model.shared:
            self._model.pack()

    def abandon(self, reason: str) -> None:
        """Fail what has not finished, and all that comes; from the thread alone."""
        with self._wake:
            self._closed = self._closed or reason
            samples = [*self._running, *self._waiting]
            orders = list(self._orders)
            self._running, self._waiting, self._orders = [], deque(), deque()
        error = EngineError(f"engine {self.name!r} does not run: {reason}")
        for sample in samples:
            sample.group.fail(error)
        for order in orders:
            if order.done.set_running_or_notify_cancel():
                order.done.set_exception(error)
        self._ended.set()
