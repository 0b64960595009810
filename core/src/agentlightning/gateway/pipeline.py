"""One model call, read top to bottom: admit → parse → rewrite → forward → record → answer.

Invariants: an agent sees the end of an answer only after its record is durable; an admitted call is recorded
exactly once, however it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from agentlightning.gateway.admission.attempts import Admitted, OpenAttempts, ended
from agentlightning.gateway.admission.body import read_json
from agentlightning.gateway.admission.identity import RequestIdentity, identify
from agentlightning.gateway.apis.base import ApiFormat, Handler
from agentlightning.gateway.apis.reasoning import split_answer
from agentlightning.gateway.errors import CallFailure, EngineReply, EngineUnreachable, RequestRefused
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.pause import ABORTED_BY_ENGINE, PauseGate, RetryAfterHold
from agentlightning.gateway.record import answer_calls, check_answer
from agentlightning.gateway.recorder import CallRecorder, RecordWriter
from agentlightning.gateway.reply import AgentReply
from agentlightning.gateway.request import ModelRequest, Planner
from agentlightning.gateway.rewrite.over_length import ContextFitter
from agentlightning.gateway.streaming import relay
from agentlightning.gateway.upstream.answer import (
    HALF_CHARACTERS,
    MENDED,
    engine_error,
    hidden_error,
    mended_text,
    parse_answer,
)
from agentlightning.gateway.upstream.client import EngineClient
from agentlightning.keys import ByteQuota, Keys
from agentlightning.log_limit import limited
from agentlightning.specs import CallGuard
from agentlightning.types import Call
from agentlightning.types.select import BadSelect

log = limited(__name__)


class Answered(msgspec.Struct, frozen=True):
    """A complete answer: its records, and the rest to send to the agent."""

    calls: list[Call]
    body: bytes
    headers: dict[str, str] = {}
    counted_as: str | None = None
    """``passed`` or ``replayed``, of a stream."""


@dataclass(kw_only=True)
class Pipeline:
    """Serves the model calls of all API formats. ``keep_alive``: seconds; ``body_limit``: bytes."""

    keys: Keys
    attempts: OpenAttempts
    planner: Planner
    gate: PauseGate
    client: EngineClient
    fitter: ContextFitter
    writer: RecordWriter
    metrics: Metrics
    guards: Sequence[CallGuard]
    keep_alive: float
    body_limit: int
    max_requests: int
    quota: ByteQuota
    """Of bytes that an attempt may send."""
    under_way: int = 0
    """Requests that are being answered, those that wait for a hold to end included."""

    async def serve(self, http: web.Request, api: ApiFormat) -> web.StreamResponse:
        """Answer one request of an API."""
        reply = AgentReply(http, api, self.keep_alive)
        return await self.admitted(reply, lambda admitted: self._continue(admitted, reply))

    async def serve_route(self, http: web.Request, api: ApiFormat, handler: Handler) -> web.StreamResponse:
        """Answer a request of a further route of an API."""
        return await self.admitted(AgentReply(http, api), lambda admitted: handler(self, admitted, http))

    async def count_prompt(self, admitted: Admitted, chat: Mapping[str, Any]) -> int:
        """Tokens of a prompt. Raise :class:`RequestRefused`: 404 where the engine, which alone knows its
        tokenizer and chat template, cannot count.
        """
        _, route = self.planner.choose(admitted, chat)
        try:
            count = await self.fitter.count(route, {**chat, "model": route.model})
        except EngineUnreachable as error:
            raise RequestRefused(error.status, error.code, str(error), retry=True) from None
        if count is None:
            message = f"the engine of policy {route.policy!r} has not counted this prompt (POST /tokenize)"
            raise RequestRefused(404, "cannot-count", f"{message}; read usage.input_tokens of the answer")
        return count

    # ---------------------------------------------------------------------------------------------- admit
    async def admitted(
        self, reply: AgentReply, answer: Callable[[Admitted], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Admit a request and ``answer`` it; a refusal or a fault becomes an error in the API's shape."""
        caller: RequestIdentity | None = None
        http = reply.http
        self.under_way += 1
        try:
            caller = identify(http.headers, self.keys)
            if self.under_way > self.max_requests:
                message = f"{self.max_requests} requests are under way here: ask again in a second"
                raise RequestRefused(503, "busy", message, retry=True)
            take = partial(self.quota.take, caller.claims)
            body = await read_json(http, self.body_limit, take) if http.method == "POST" else {}
            if deployment := http.match_info.get("deployment"):
                body = {"model": deployment, **body}
            attempt = await self.attempts.get(caller.claims)
            return await answer(Admitted(caller, attempt, body))
        except RequestRefused as error:
            refused = error
        except BadSelect as error:  # a predicate of the user's fails on a call's tags
            log.error("%s", error)
            refused = RequestRefused(500, "bad-select", str(error))
        except Exception:
            log.exception("%s %s failed", http.method, http.path)
            message = "the gateway failed on this request; its log says why"
            refused = RequestRefused(500, "gateway-error", message, retry=True)
        finally:
            self.under_way -= 1
        await self.writer.count_refused(refused.of(caller.claims if caller else None))
        return await reply.refuse(refused)

    # ------------------------------------------------------------------------------------ parse, rewrite
    async def _continue(self, admitted: Admitted, reply: AgentReply) -> web.StreamResponse:
        """Run a call, translated to the engine's API."""
        async with reply.api.chat(admitted.body, admitted.attempt) as chat:
            if admitted.attempt.closing:  # while the store was read
                raise ended(admitted.caller.claims)
            return await self._call(admitted, reply, chat)

    async def _call(self, admitted: Admitted, reply: AgentReply, chat: dict[str, Any]) -> web.StreamResponse:
        """Run a call as one of its attempt's tasks, so that closing the attempt can stop it."""
        recorder = CallRecorder(self.writer, self.planner.plan(admitted, reply.api, chat))
        task = asyncio.current_task()
        assert task is not None
        admitted.attempt.tasks.add(task)
        try:
            async with AsyncExitStack() as guarded:
                for guard in self.guards:
                    await guarded.enter_async_context(guard.admit(admitted.attempt.info.rollout_id))
                return await self._forward(reply, recorder)
        except CallFailure as refused:  # by a guard: every other failure is answered where it happens
            await recorder.failed(refused)
            return await reply.fail(refused)
        except asyncio.CancelledError:
            await self._stopped(admitted, reply, recorder)
            raise
        except RequestRefused:
            raise
        except Exception as error:
            await recorder.fault(error)
            raise
        finally:
            admitted.attempt.tasks.discard(task)

    # -------------------------------------------------------------------------------------------- forward
    async def _forward(self, reply: AgentReply, recorder: CallRecorder) -> web.StreamResponse:
        """Send the call to the engine of its policy; again, if a hold made the engine give it up."""
        planned = recorder.request
        policy = planned.route.policy
        while True:
            await self.gate.wait(policy)
            # Once the head has left, the prompt stays as it was fitted: no error may replace the answer.
            request = recorder.request if reply.head_sent else planned
            recorder.request = self.planner.reroute(request, self.gate.hold_count(policy))
            with self.gate:
                try:
                    return await self._once(reply, recorder)
                except RetryAfterHold:
                    recorder.assembler = None  # nothing of the answer is on record

    async def _once(self, reply: AgentReply, recorder: CallRecorder) -> web.StreamResponse:
        """Fit, ask, record, answer."""
        try:
            if not reply.head_sent:
                recorder.request = await self._fit(recorder.request)
            request = recorder.request
            self.gate.check(request.route.policy, request.holds)
            answered = await self._ask(reply, recorder)
        except CallFailure as failure:
            failure = self._retried_or_failed(failure, reply, recorder)
            await recorder.failed(failure)
            return await reply.fail(failure)
        await recorder.commit(answered.calls)
        request = recorder.request
        request.api.remember(request.attempt, answered.calls[0], request.chat)
        if answered.counted_as:
            self.metrics.streams[answered.counted_as] += 1
        return await reply.finish(answered.body, answered.headers, stream=recorder.request.streams)

    def _retried_or_failed(
        self, failure: CallFailure, reply: AgentReply, recorder: CallRecorder
    ) -> CallFailure:
        """Raise :class:`RetryAfterHold`, or return the failure that the call ends with.

        An error of the request's own (4xx) is never retried, nor is a call of which a part has left.
        """
        request, aborted = recorder.request, self.metrics.aborted
        if failure.status < 500 or request.holds == self.gate.hold_count(request.route.policy):
            return failure
        aborted["tokens"] += recorder.tokens or failure.tokens
        aborted["streams" if reply.content_sent else "calls"] += 1
        if reply.content_sent:
            return CallFailure(502, ABORTED_BY_ENGINE, str(failure))
        raise RetryAfterHold

    async def _fit(self, request: ModelRequest) -> ModelRequest:
        """Shorten a prompt that the engine's context cannot take, or raise :class:`CallFailure`."""
        route, cuts = request.route, request.attempt.dropped_blocks
        fitted = await self.fitter.fit(route, request.engine_body, cuts, request.api.engine_api)
        if fitted is None:
            return request
        body, edited = fitted
        return msgspec.structs.replace(request, engine_body=body, edited=edited)

    async def _ask(self, reply: AgentReply, recorder: CallRecorder) -> Answered:
        """Ask the engine, passing its stream on if possible."""
        request = recorder.request
        route, attempt_id = request.route, request.attempt.info.attempt_id
        sent = (route, request.api.engine_api, request.payload(), reply.http.headers, attempt_id)
        if request.passes_through:
            return await self.client.send(*sent, lambda response: self._pass(response, reply, recorder))
        asked = self.client.ask(*sent)
        return _answered(request, await (reply.alive_until(asked) if request.streams else asked))

    async def _pass(
        self, response: aiohttp.ClientResponse, reply: AgentReply, recorder: CallRecorder
    ) -> Answered:
        """Pass a stream on; errors, and engines that cannot stream, answer whole."""
        request = recorder.request
        if response.status != 200 or response.content_type != "text/event-stream":
            return _answered(request, await self.client.read(request.route, response))
        closing = await relay(response, reply, recorder, self.client.limits.answer_bytes)
        return Answered(recorder.streamed_calls(), closing, counted_as="passed")

    # ----------------------------------------------------------------------------------------------- stop
    async def _stopped(self, admitted: Admitted, reply: AgentReply, recorder: CallRecorder) -> None:
        """Record the part that has arrived: the agent hung up, or its attempt was closed. Raise
        :class:`RequestRefused` when the agent can still be told.
        """
        attempt, claims = admitted.attempt, admitted.caller.claims
        answers = attempt.closing and not reply.head_sent
        try:
            await recorder.stopped("the attempt was closed" if attempt.closing else "the agent hung up")
        except RequestRefused as refused:
            if answers:
                raise refused from None  # it is counted where it is answered
            await self.writer.count_refused(refused.of(claims))
        if answers:
            message = f"attempt {claims.attempt_id} has ended; this call was stopped"
            raise RequestRefused(409, "attempt-ended", message) from None


def _answered(request: ModelRequest, whole: EngineReply) -> Answered:
    """An engine's whole answer: its records, and the body or the stream that the agent gets."""
    whole = hidden_error(whole)
    if whole.status != 200:
        failure = engine_error(msgspec.structs.replace(whole, body=request.route.redact(whole.body)))
        request.route.always_count |= failure.over_length
        raise failure
    if (raw := mended_text(whole.body)) is not whole.body:
        request = msgspec.structs.replace(request, edited={**request.edited, MENDED: HALF_CHARACTERS})
    answer = parse_answer(raw, request.api.engine_api, request.decode)
    answer.id = request.api.id_of(answer.id, request.answer_id)
    calls = answer_calls(request, check_answer(request, answer))
    if "reasoning" in calls[0].edited:
        raw = split_answer(raw, request.route.settings.reasoning == "split-opened")
    body = request.api.render(request.agent_body, raw, request.answer_id, request.streams)
    return Answered(calls, body, whole.headers, "replayed" if request.streams else None)
