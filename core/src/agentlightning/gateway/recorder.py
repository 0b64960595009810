"""Records are stored before the agent sees the end of its answer.

One recorder serves each call, whether its answer comes whole or in chunks. Invariants: an admitted call is
recorded exactly once, however it ends; on return of :meth:`CallRecorder.commit` the record is durable, and it
is written even if the call is cancelled meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from agentlightning.gateway.admission.attempts import OpenAttempts
from agentlightning.gateway.errors import CallFailure, RequestRefused, store_failed
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.record import answer_calls, exact, failed_call
from agentlightning.gateway.request import ModelRequest
from agentlightning.gateway.upstream.answer import EngineAnswer, raise_if_aborted
from agentlightning.gateway.upstream.assembler import AnswerAssembler
from agentlightning.log_limit import limited
from agentlightning.specs import CallGuard
from agentlightning.store.base import AttemptEnded, Store
from agentlightning.types import Call

log = limited(__name__)


@dataclass
class RecordWriter:
    """Stores the records of all calls, and hands each to ``on_call`` once it is durable."""

    store: Store
    attempts: OpenAttempts
    metrics: Metrics
    guards: Sequence[CallGuard]
    on_call: Callable[[Call], None] | None

    async def write(self, request: ModelRequest, calls: list[Call]) -> None:
        """Store the records of a call: durable on return, and written even if this task is cancelled.

        Raise :class:`RequestRefused` when the store does not take them: the answer must be withheld.
        """
        claims = request.caller.claims
        try:
            await self.store.add_calls(calls, fence=claims.fence)
        except asyncio.CancelledError:  # a second write of the same call ids does no harm
            writes = request.attempt.writes
            write = asyncio.gather(self.write(request, calls), return_exceptions=True)
            writes.add(write)
            write.add_done_callback(writes.discard)
            raise
        except AttemptEnded as error:
            self.metrics.lost_records += len(calls)
            self.attempts.revoke(claims.attempt_id)
            raise RequestRefused(409, "attempt-ended", str(error)) from None
        except Exception as error:
            self.metrics.lost_records += len(calls)
            log.exception(
                "attempt %s: the store did not take a record; its answer is withheld", claims.attempt_id
            )
            message = "the record of this call could not be stored, so its answer is withheld"
            raise store_failed(message, error) from None
        self.metrics.count_calls(calls)
        for guard in self.guards:
            guard.count(calls)
        if self.on_call:
            asyncio.get_running_loop().call_soon(self._notify, calls)

    async def count_refused(self, refused: RequestRefused) -> None:
        """Count a refused request, in the ledger of its attempt if that is known."""
        self.metrics.refused[refused.reason] += 1
        rollout, attempt = (c.rollout_id, c.attempt_id) if (c := refused.claims) else (None, None)
        try:
            await self.store.count("refused", refused.reason, rollout_id=rollout, attempt_id=attempt)
        except Exception:
            self.metrics.uncounted += 1
            log.exception("the store did not take the count of a refused request (%s)", refused.reason)

    def _notify(self, calls: list[Call]) -> None:
        """Call the hook, after the answer was sent."""
        assert self.on_call is not None
        for call in calls:
            try:
                self.on_call(call)
            except Exception:
                self.metrics.hook_errors += 1
                if self.metrics.hook_errors == 1:
                    log.exception(
                        "on_call failed; further failures are only counted (GET /metrics: hook_errors)"
                    )


@dataclass(slots=True)
class CallRecorder:
    """Records one call."""

    writer: RecordWriter
    request: ModelRequest
    assembler: AnswerAssembler | None = None
    """The part of a stream that has arrived."""
    recorded: bool = False

    @property
    def tokens(self) -> int:
        """Tokens that have arrived of a stream."""
        return self.assembler.tokens if self.assembler else 0

    def streamed_calls(self) -> list[Call]:
        """The calls of a stream that has ended; calls without token ids are masked."""
        request = self.request
        answer = self._assembled()
        raise_if_aborted(answer)
        calls = answer_calls(request, answer)
        if request.route.trainable and not exact(calls):
            if request.route.stream_ids is None:
                request.route.inexact_streams.add(request.tools)
            for call in calls:
                if call.masked is None and request.selected and not call.has_ids:
                    call.masked = "no-ids"
        return calls

    async def commit(self, calls: list[Call]) -> None:
        """Store the records of the answer."""
        self.recorded = True
        await self.writer.write(self.request, calls)

    async def failed(self, failure: CallFailure) -> None:
        """Record that the call ended without a complete answer, unless it is recorded already."""
        if not self.recorded:
            await self.commit(self._partial("error", failure.record) or [failed_call(self.request, failure)])

    async def fault(self, error: Exception) -> None:
        """Record that the gateway failed on the call, without the part that arrived: it may be the cause."""
        self.assembler = None
        await self.failed(CallFailure(500, "gateway-error", f"{type(error).__name__}: {error}"))

    async def stopped(self, reason: str) -> None:
        """Record that the call was cancelled, unless it is recorded already."""
        if not self.recorded:
            calls = self._partial("cancelled", reason)
            await self.commit(calls or [self.request.call(status="cancelled", error=reason)])

    def _partial(self, status: Literal["error", "cancelled"], error: str) -> list[Call]:
        """The calls of a stream that ended early, with the part that arrived; none if nothing did."""
        if self.assembler is None or self.assembler.empty:
            return []
        return answer_calls(self.request, self._assembled(), status=status, error=error)

    def _assembled(self) -> EngineAnswer:
        """The answer of a stream, without the route's key should it have come in several pieces."""
        assert self.assembler is not None
        answer = self.assembler.answer()
        for choice in answer.choices:
            raw = msgspec.json.encode([choice.message, choice.text])
            if (kept := self.request.route.scrub(raw)) is not raw:
                choice.message, choice.text = msgspec.json.decode(kept)
        return answer
