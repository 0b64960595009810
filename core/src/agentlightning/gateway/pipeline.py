"""One model call, read top to bottom: admit → plan → fit → ask → record → reply.

Invariants: an agent sees the end of an answer only after its call is durable; an admitted call is recorded
exactly once, however it ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import aiohttp
import msgspec
from aiohttp import web

from agentlightning.gateway.answer import (
    HALF_CHARACTERS,
    MENDED,
    EngineAnswer,
    check_answer,
    engine_error,
    hidden_error,
    mended_text,
    parse_answer,
)
from agentlightning.gateway.apis import ApiFormat, Handler
from agentlightning.gateway.attempts import Admitted, OpenAttempts, ended
from agentlightning.gateway.calls import CallWriter, answer_calls, call_of, failed_call, streamed_calls
from agentlightning.gateway.client import EngineClient
from agentlightning.gateway.errors import CallFailure, EngineReply, RequestRefused
from agentlightning.gateway.identity import RequestIdentity, identify, read_json
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.pause import ABORTED_BY_ENGINE, PauseGate
from agentlightning.gateway.reply import AgentReply
from agentlightning.gateway.request import ModelRequest, Planner
from agentlightning.gateway.stream import StreamedAnswer
from agentlightning.keys import ByteQuota, Keys
from agentlightning.log_limit import limited
from agentlightning.specs import CallGuard
from agentlightning.types import Call
from agentlightning.types.select import BadSelect

log = limited(__name__)
BODY_LIMIT = 16 * 2**20
"""Bytes of a request, compressed or not."""


class Answered(msgspec.Struct, frozen=True):
    """A complete answer of an engine, and what of it the agent still has to get."""

    answer: EngineAnswer
    body: bytes
    headers: dict[str, str] = {}
    streamed: bool = False
    """It came as a stream, which has been passed on."""


@dataclass(kw_only=True)
class Pipeline:
    """Serves the model calls of all APIs. ``keep_alive``: seconds between comments in a silent stream."""

    keys: Keys
    attempts: OpenAttempts
    planner: Planner
    gate: PauseGate
    client: EngineClient
    writer: CallWriter
    metrics: Metrics
    guards: Sequence[CallGuard]
    keep_alive: float
    max_requests: int
    quota: ByteQuota
    """Of bytes that an attempt may send."""
    under_way: int = 0
    """Requests that are being answered, those that wait for a hold to end included."""

    async def serve(
        self, http: web.Request, api: ApiFormat, handler: Handler | None = None
    ) -> web.StreamResponse:
        """Answer one request of an API: a model call, or what ``handler`` does. A refusal or a fault becomes
        an error in the API's shape.
        """
        reply = AgentReply(http, api, self.keep_alive)
        caller: RequestIdentity | None = None
        self.under_way += 1
        try:
            caller = identify(http.headers, self.keys)
            admitted = await self._admit(http, caller)
            if handler is not None:
                return await handler(admitted, http, self.planner.choose)
            async with api.chat(admitted.body, admitted.attempt) as chat:
                if admitted.attempt.closing:  # while the store was read
                    raise ended(caller.claims)
                return await ModelCall(self, self.planner.plan(admitted, api, chat), reply).run()
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

    async def _admit(self, http: web.Request, caller: RequestIdentity) -> Admitted:
        """Read a request of an attempt that may call, or raise :class:`RequestRefused`."""
        if self.under_way > self.max_requests:
            message = f"{self.max_requests} requests are under way here: ask again in a second"
            raise RequestRefused(503, "busy", message, retry=True)
        take = partial(self.quota.take, caller.claims)
        body = await read_json(http, BODY_LIMIT, take) if http.method == "POST" else {}
        if deployment := http.match_info.get("deployment"):
            body = {"model": deployment, **body}
        return Admitted(caller, await self.attempts.get(caller.claims), body)


@dataclass(slots=True)
class ModelCall:
    """One admitted call."""

    gateway: Pipeline
    request: ModelRequest
    """The call with all decisions so far."""
    reply: AgentReply
    stream: StreamedAnswer | None = None
    """The part of a stream that has arrived."""
    recorded: bool = False

    async def run(self) -> web.StreamResponse:
        """Make the call, as one of its attempt's tasks, so that closing the attempt can stop it."""
        attempt, task = self.request.attempt, asyncio.current_task()
        assert task is not None
        attempt.tasks.add(task)
        try:
            async with AsyncExitStack() as guarded:
                for guard in self.gateway.guards:
                    await guarded.enter_async_context(guard.admit(attempt.info.rollout_id))
                return await self._answer()
        except CallFailure as refused:  # by a guard: every other failure ends the call where it happens
            return await self._fail(refused)
        except asyncio.CancelledError:
            await self._stopped()
            raise
        except RequestRefused:
            raise
        except Exception as error:
            self.stream = None  # it may be the cause
            failure = CallFailure(500, "gateway-error", f"{type(error).__name__}: {error}")
            await self._record_end("error", failure.record, failed_call(self.request, failure))
            raise
        finally:
            attempt.tasks.discard(task)

    async def _answer(self) -> web.StreamResponse:
        """Have the engine of the policy answer; again, if a hold made it give the call up."""
        gate, planned = self.gateway.gate, self.request
        policy = planned.route.policy
        while True:
            await gate.wait(policy)
            # Once the head has left, the prompt stays as it was fitted: no error may replace the answer.
            request = self.request if self.reply.head_sent else planned
            self.request = self.gateway.planner.reroute(request, gate.hold_count(policy))
            with gate:
                if (sent := await self._once()) is not None:
                    return sent
            self.stream = None  # nothing of the answer is on record

    async def _once(self) -> web.StreamResponse | None:
        """Fit, ask, record, reply. ``None``: the policy was held meanwhile; make the call again."""
        gateway, reply = self.gateway, self.reply
        try:
            if not reply.head_sent:
                await self._fit()
            if gateway.gate.hold_count(self.request.route.policy) != self.request.holds:
                return None
            answered = await self._ask()
        except CallFailure as failure:
            last = self._unless_retried(failure)
            return None if last is None else await self._fail(last)
        request = self.request
        calls = (streamed_calls if answered.streamed else answer_calls)(request, answered.answer)
        await self._record(calls)
        request.api.remember(request.attempt, calls[0], request.chat)
        if request.streams:
            gateway.metrics.streams["passed" if answered.streamed else "replayed"] += 1
        return await reply.finish(answered.body, answered.headers, stream=request.streams)

    async def _fit(self) -> None:
        """Shorten a prompt that the engine's context cannot take, or raise :class:`CallFailure`."""
        request = self.request
        kept, api = request.attempt.edits, request.api.engine_api
        if (fitted := await request.route.edits.fit(api, request.engine_body, kept)) is not None:
            self.request = msgspec.structs.replace(request, engine_body=fitted[0], edited=fitted[1])

    async def _ask(self) -> Answered:
        """Ask the engine, passing its stream on if possible. Raise :class:`CallFailure`."""
        request, client = self.request, self.gateway.client
        route, attempt_id = request.route, request.attempt.info.attempt_id
        sent = (route, request.api.engine_api, request.payload(), self.reply.http.headers, attempt_id)
        if not request.passes_through:
            asked = client.ask(*sent)
            return self._whole(await (self.reply.alive_until(asked) if request.streams else asked))
        async with client.sent(*sent) as response:
            if response.status == 200 and response.content_type == "text/event-stream":
                return await self._pass(response)
            whole = await client.read(route, response)  # errors, and engines that cannot stream
        return self._whole(whole)

    async def _pass(self, response: aiohttp.ClientResponse) -> Answered:
        """Pass a stream on, all but its closing events."""
        reply = self.reply
        await reply.write()
        self.stream = stream = StreamedAnswer(self.request, self.gateway.client.limits.answer_bytes)
        async for data in response.content.iter_any():
            if ready := stream.feed(data):
                reply.content_sent = reply.content_sent or stream.content_begun
                await reply.write(ready)
        closing, answer = stream.end()
        self._note(stream.edited)
        return Answered(answer, closing, streamed=True)

    def _whole(self, whole: EngineReply) -> Answered:
        """Read an engine's whole answer, and make the body or the stream that the agent gets."""
        request, route = self.request, self.request.route
        whole = hidden_error(whole)
        if whole.status != 200:
            raise engine_error(msgspec.structs.replace(whole, body=route.redact(whole.body)))
        if (raw := mended_text(whole.body)) is not whole.body:
            self._note({MENDED: HALF_CHARACTERS})
        answer = parse_answer(raw, request.api.engine_api, request.decode)
        check_answer(answer, request.choices, route.served_version())
        answer.id = request.api.id_of(answer.id, request.answer_id)
        raw = route.edits.whole(request.api.engine_api, raw)
        body = request.api.render(request.agent_body, raw, request.answer_id, request.streams)
        return Answered(answer, body, whole.headers)

    def _note(self, edited: Mapping[str, Any]) -> None:
        """Keep in the record what was changed."""
        self.request = msgspec.structs.replace(self.request, edited={**self.request.edited, **edited})

    # ------------------------------------------------------------------------------------- other ends
    def _unless_retried(self, failure: CallFailure) -> CallFailure | None:
        """The failure that the call ends with; ``None`` if it is made again after a hold.

        An error of the request's own (4xx) is never retried, nor is a call of which a part has left.
        """
        request, aborted = self.request, self.gateway.metrics.aborted
        if failure.status < 500 or request.holds == self.gateway.gate.hold_count(request.route.policy):
            return failure
        aborted["tokens"] += (self.stream.tokens if self.stream else 0) or failure.tokens
        aborted["streams" if self.reply.content_sent else "calls"] += 1
        return CallFailure(502, ABORTED_BY_ENGINE, str(failure)) if self.reply.content_sent else None

    async def _fail(self, failure: CallFailure) -> web.StreamResponse:
        """Record that the call has ended without a complete answer, and send the error."""
        await self._record_end("error", failure.record, failed_call(self.request, failure))
        return await self.reply.fail(failure)

    async def _stopped(self) -> None:
        """Record the part that has arrived: the agent hung up, or its attempt was closed. Raise
        :class:`RequestRefused` when the agent can still be told.
        """
        attempt, claims = self.request.attempt, self.request.caller.claims
        answers = attempt.closing and not self.reply.head_sent
        reason = "the attempt was closed" if attempt.closing else "the agent hung up"
        try:
            stopped = call_of(self.request, status="cancelled", error=reason)
            await self._record_end("cancelled", reason, stopped)
        except RequestRefused as refused:
            if answers:
                raise refused from None  # it is counted where it is answered
            await self.gateway.writer.count_refused(refused.of(claims))
        if answers:
            message = f"attempt {claims.attempt_id} has ended; this call was stopped"
            raise RequestRefused(409, "attempt-ended", message) from None

    async def _record_end(self, status: Literal["error", "cancelled"], error: str, otherwise: Call) -> None:
        """Record a call that ended early, with the part of its stream that has arrived, ``otherwise`` without
        any; nothing if it is recorded already.
        """
        if self.recorded:
            return
        calls = [otherwise]
        if self.stream is not None and not self.stream.empty:
            self._note(self.stream.edited)
            calls = answer_calls(self.request, self.stream.answer(), status=status, error=error)
        await self._record(calls)

    async def _record(self, calls: list[Call]) -> None:
        self.recorded = True
        await self.gateway.writer.write(self.request, calls)
