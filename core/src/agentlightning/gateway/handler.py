"""One model call, from the agent's request to its answer.

Read top to bottom: admit → hold → fit → ask the engine → record → answer. Invariant: an agent sees the end of
an answer only after ``store.add_calls`` returned; an admitted call leaves exactly one set of records, however
it ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from agentlightning.gateway.admission.attempts import OpenAttempt, OpenAttempts, branch_of
from agentlightning.gateway.admission.body import read_json
from agentlightning.gateway.admission.identity import Caller, identify
from agentlightning.gateway.apis.base import ApiFormat, format_error
from agentlightning.gateway.errors import (
    TOO_LONG,
    AgentGone,
    BadAnswer,
    EngineUnreachable,
    RequestRefused,
    error_response,
)
from agentlightning.gateway.metrics import Metrics
from agentlightning.gateway.pause import PauseGate
from agentlightning.gateway.record import (
    Api,
    ModelRequest,
    answer_calls,
    checked,
    error_call,
    over_length_call,
    refusal_call,
    response_body,
    stopped_calls,
)
from agentlightning.gateway.retry import HoldRetries, RetryAfterHold
from agentlightning.gateway.rewrite.over_length import ContextFitter
from agentlightning.gateway.rewrite.sampling import SamplingPolicy, apply_sampling, ask_for_tokens
from agentlightning.gateway.streaming import Streamer
from agentlightning.gateway.upstream.answer import ErrorInfo, parse_answer, parse_error
from agentlightning.gateway.upstream.client import RESPONSE_HEADERS, EngineClient
from agentlightning.gateway.upstream.route import Routes, Upstream
from agentlightning.keys import Keys
from agentlightning.store.base import AttemptEnded, Store, StoreError
from agentlightning.types import Call, Tags, merge_tags
from agentlightning.types.select import BadSelect, caller_name as maker, policy_for, with_role

log = logging.getLogger(__name__)


class Handler:
    """Serves ``/v1/chat/completions``, ``/v1/completions`` and the dialects."""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        attempts: OpenAttempts,
        routes: Routes,
        client: EngineClient,
        gate: PauseGate,
        metrics: Metrics,
        *,
        on_call: Callable[[Call], None] | None,
        keep_alive: float,
        body_limit: int,
    ) -> None:
        self.body_limit = body_limit
        self.store = store
        self.keys = keys
        self.attempts = attempts
        self.routes = routes
        self.client = client
        self.gate = gate
        self.metrics = metrics
        self.retries = HoldRetries(gate, metrics)
        self.on_call = on_call
        self.over_length = ContextFitter(client, metrics)
        self.sampling: dict[str, SamplingPolicy] = {}
        self.streamer = Streamer(self, keep_alive)

    async def serve(
        self, request: web.Request, api: Api, api_format: ApiFormat | None = None
    ) -> web.StreamResponse:
        """Answer one request, in the API format in which it was asked."""

        async def call(caller: Caller, attempt: OpenAttempt, asked: dict[str, Any]) -> web.StreamResponse:
            body = api_format.chat(asked, attempt.arguments) if api_format else asked
            exchange = self._exchange(api, caller, body, attempt)
            exchange.api_format, exchange.asked = api_format, asked
            return await self._admitted(request, exchange)

        response = await self.guarded(request, call)
        return format_error(api_format, response) if api_format else response

    async def guarded(
        self,
        request: web.Request,
        call: Callable[[Caller, OpenAttempt, dict[str, Any]], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Answer by ``call(caller, attempt, body)``; what is refused, or fails, becomes an error answer."""
        caller: Caller | None = None
        try:
            caller = identify(request.headers, self.keys)
            body = await read_json(request, self.body_limit)
            attempt = await self._attempt(caller)
            return await call(caller, attempt, body)
        except (RequestRefused, BadSelect) as error:
            refused = error if isinstance(error, RequestRefused) else _bad_select(error)
            claims = caller.claims if caller else None
            refused.rollout_id = refused.rollout_id or (claims.rollout_id if claims else None)
            refused.attempt_id = refused.attempt_id or (claims.attempt_id if claims else None)
            return await self.refuse(refused)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            message = "the gateway failed on this request; its log says why"
            await self.count_refused(failed := RequestRefused(500, "gateway-error", message), caller)
            return error_response(failed.status, failed.reason, message)

    # ---------------------------------------------------------------------------------------------- admit
    async def _attempt(self, caller: Caller) -> OpenAttempt:
        try:
            return await self.attempts.get(caller.claims)
        except RequestRefused:
            raise
        except Exception as error:
            log.exception("attempt %s: the store could not be asked about it", caller.claims.attempt_id)
            raise _store_failed("the store could not be asked about this key's attempt", error) from None

    async def _admitted(self, request: web.Request, exchange: ModelRequest) -> web.StreamResponse:
        """Run the call as one of its attempt's tasks, so that closing the attempt can stop it."""
        attempt = exchange.attempt
        task = asyncio.current_task()
        assert task is not None
        attempt.tasks.add(task)
        try:
            while True:
                await self.gate.wait(exchange.route.policy)
                self.retries.begin(exchange)
                with self.gate.track(), suppress(RetryAfterHold):
                    return await self._forwarded(request, exchange)
        except (asyncio.CancelledError, AgentGone) as gone:
            return await self._stopped(exchange, gone)
        except RequestRefused:
            raise
        except Exception as error:  # ours, or a route's version(): the call is on record all the same
            if not exchange.committed:
                await self.commit(
                    exchange, [error_call(exchange, f"gateway-error: {type(error).__name__}: {error}")]
                )
            raise
        finally:
            attempt.tasks.discard(task)

    async def _forwarded(self, request: web.Request, exchange: ModelRequest) -> web.StreamResponse:
        """Ask the engine, with a prompt that fits it."""
        route = exchange.route = self.routes.latest(
            exchange.route
        )  # it may have moved while the call was held
        exchange.sent["model"] = route.model
        exchange.version = route.served_version()
        try:
            # one whose head has left is asked again: it fits, and no second answer may follow
            too_long = None if exchange.answered else await self.over_length.fit(exchange)
        except EngineUnreachable as error:
            return await self.unreachable(exchange, error)
        self.retries.check(exchange)
        if too_long is not None:
            await self.commit(exchange, [over_length_call(exchange, f"over-length: {too_long}")])
            return error_response(400, TOO_LONG, too_long, retry=False)
        if exchange.streams:
            return await self.streamer.serve(request, exchange)
        return await self._whole(request, exchange)

    def choose(self, caller: Caller, attempt: OpenAttempt, body: dict[str, Any]) -> tuple[Tags, Upstream]:
        """Tags and route of a request."""
        info = attempt.info
        tags = with_role(merge_tags(info.tags, caller.tags) if info.tags else caller.tags)
        mapped = policy_for(info.policies, tags)
        try:
            return tags, self.routes.choose(str(body.get("model", "")), caller.policy, mapped)
        except RequestRefused as refused:
            if mapped is None and caller.policy is None:
                self.metrics.count_unrouted(who := maker(tags))
                wanted = f"no policy is given to {who!r}: add its agent, role or node to `policies`"
                raise RequestRefused(404, "no-route", f"{wanted} ({refused})") from None
            raise

    def _exchange(self, api: Api, caller: Caller, body: dict[str, Any], attempt: OpenAttempt) -> ModelRequest:
        """Decide route, selection and sampling. No await: the sequence is the order of arrival."""
        info = attempt.info
        tags, route = self.choose(caller, attempt, body)
        selected = route.trainable and caller.selected and attempt.selects(tags)
        sent = {**body, "model": route.model}
        training = selected and info.mode == "train"
        sampling = apply_sampling(
            sent,
            policy=self.sampling.get(route.policy) if training else None,
            greedy=info.greedy and selected and not training,
            seed=attempt.next_seed(branch_of(tags), body, caller.span_id, caller.retry)
            if selected or route.seeded
            else None,
        )
        if route.trainable:
            ask_for_tokens(sent, api)
        return ModelRequest(
            caller=caller,
            attempt=attempt,
            route=route,
            api=api,
            body=body,
            sent=sent,
            tags=tags,
            selected=selected,
            sampling=sampling,
            sequence=attempt.next_sequence(),
            start=time.time(),
        )

    # ----------------------------------------------------------------------------------------- unstreamed
    async def _whole(self, request: web.Request, exchange: ModelRequest) -> web.StreamResponse:
        try:
            status, headers, raw = await self.ask(request, exchange)
        except EngineUnreachable as error:
            return await self.unreachable(exchange, error)
        if status != 200:
            return await self.engine_refused(exchange, status, headers, raw)
        try:
            calls = answer_calls(exchange, checked(exchange, parse_answer(raw, exchange.api)))
            body = response_body(exchange, raw)
        except BadAnswer as error:
            return await self.bad_answer(exchange, error)
        except EngineUnreachable as error:
            return await self.unreachable(exchange, error)
        await self.commit(exchange, calls)
        return web.Response(body=body, headers=headers)

    async def ask(self, request: web.Request, exchange: ModelRequest) -> tuple[int, dict[str, str], bytes]:
        """Status, headers to pass back and body of the engine's whole answer."""
        sent, key = msgspec.json.encode(exchange.sent), exchange.attempt.info.attempt_id
        async with self.client.post(exchange.route, exchange.api, sent, request.headers, key) as response:
            raw = exchange.route.scrub(await self.client.read(response))
            headers = {"Content-Type": response.headers.get("Content-Type", "application/json")}
            for name in RESPONSE_HEADERS:
                if (value := response.headers.get(name)) is not None:
                    headers[name] = value
            return response.status, exchange.route.redacted(headers), raw

    # --------------------------------------------------------------------------------------------- record
    async def commit(self, exchange: ModelRequest, calls: list[Call]) -> None:
        """Store the records of an exchange: durable on return, written even if the handler is cancelled."""
        exchange.committed = True
        fence = exchange.caller.claims.fence
        try:
            await self.store.add_calls(calls, fence=fence)
        except asyncio.CancelledError:
            writes = exchange.attempt.writes
            write = asyncio.create_task(self._write_again(calls, fence))
            writes.add(write)
            write.add_done_callback(writes.discard)
            raise
        except AttemptEnded as error:
            self.metrics.lost_records += len(calls)
            self.attempts.revoke(exchange.caller.claims.attempt_id)
            raise RequestRefused(409, "attempt-ended", str(error)) from None
        except Exception as error:
            self._lost(calls)
            said = "the record of this call could not be stored, so its answer is withheld"
            raise _store_failed(said, error) from None
        self._recorded(calls)

    async def _write_again(self, calls: list[Call], fence: int) -> None:
        """Finish a write whose handler was cancelled half-way. Call ids make the second write harmless."""
        try:
            await self.store.add_calls(calls, fence=fence)
        except Exception:
            self._lost(calls)
        else:
            self._recorded(calls)

    def _lost(self, calls: list[Call]) -> None:
        self.metrics.lost_records += len(calls)
        log.exception(
            "attempt %s: the store did not take a record; its answer is withheld", calls[0].attempt_id
        )

    def _recorded(self, calls: list[Call]) -> None:
        self.metrics.count_calls(calls)
        if self.on_call:
            asyncio.get_running_loop().call_soon(self._tell, calls)

    def _tell(self, calls: list[Call]) -> None:
        """The notification hook, off the hot path."""
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

    # ------------------------------------------------------------------------------------- ends of a call
    async def unreachable(self, exchange: ModelRequest, error: EngineUnreachable) -> web.Response:
        """The engine could not be asked: recorded, and said so."""
        self.retries.failed(exchange, error.code, error.tokens)
        await self.commit(exchange, [error_call(exchange, f"{error.code}: {error}")])
        return error_response(error.status, error.code, str(error))

    async def bad_answer(self, exchange: ModelRequest, error: BadAnswer) -> web.Response:
        """The engine's answer cannot be read: recorded as an error, never passed on."""
        self.retries.failed(exchange, "bad-answer")
        await self.commit(exchange, [error_call(exchange, f"bad-answer: {error}")])
        return error_response(502, "bad-answer", str(error))

    async def engine_refused(
        self, exchange: ModelRequest, status: int, headers: dict[str, str], raw: bytes
    ) -> web.Response:
        """The engine answered an error status: recorded, and passed on as it is."""
        if status < 400:
            return await self.bad_answer(exchange, BadAnswer(f"the engine answered HTTP {status}"))
        raw = exchange.route.redact(raw)
        info = await self.refusal(exchange, status, raw)
        if info.over_length:  # engines say it in many ways, the SDK and frameworks know one
            return error_response(400, TOO_LONG, info.message, retry=False)
        return web.Response(body=raw, status=status, headers=headers)

    async def refusal(self, exchange: ModelRequest, status: int, raw: bytes) -> ErrorInfo:
        """Record that the engine answered an error status."""
        if status >= 500:
            self.retries.failed(exchange, f"http-{status}")
        info = parse_error(status, raw)
        await self.commit(exchange, [refusal_call(exchange, status, info)])
        if info.over_length:
            exchange.route.always_count = True
        return info

    async def _stopped(self, exchange: ModelRequest, gone: BaseException) -> web.StreamResponse:
        """The agent hung up, or its attempt was closed: record what there is."""
        closing = exchange.attempt.closing
        if not exchange.committed:
            reason = "the attempt was closed" if closing else "the agent hung up"
            try:
                await self.commit(exchange, stopped_calls(exchange, "cancelled", reason))
            except RequestRefused as refused:
                if closing and not exchange.answered:
                    raise refused from None  # it is counted where it is answered
                await self.count_refused(refused, exchange.caller)
        if closing and not exchange.answered:
            claims = exchange.caller.claims
            raise RequestRefused(
                409, "attempt-ended", f"attempt {claims.attempt_id} has ended; this call was stopped"
            ) from None
        raise gone if isinstance(gone, asyncio.CancelledError) else asyncio.CancelledError from None

    async def refuse(self, refused: RequestRefused) -> web.Response:
        """Count a refusal, and say it."""
        await self.count_refused(refused)
        response = error_response(refused.status, refused.reason, str(refused), retry=refused.retry)
        response.headers.update(refused.headers)
        return response

    async def count_refused(self, refused: RequestRefused, caller: Caller | None = None) -> None:
        self.metrics.refused[refused.reason] += 1
        claims = caller.claims if caller else None
        try:
            await self.store.count(
                "refused",
                refused.reason,
                rollout_id=refused.rollout_id or (claims.rollout_id if claims else None),
                attempt_id=refused.attempt_id or (claims.attempt_id if claims else None),
            )
        except Exception:
            self.metrics.uncounted += 1
            log.exception("the store did not take the count of a refused request (%s)", refused.reason)


def _bad_select(error: BadSelect) -> RequestRefused:
    """A predicate of the user's fails on a call's tags."""
    log.error("%s", error)
    return RequestRefused(500, "bad-select", str(error))


def _store_failed(message: str, error: Exception) -> RequestRefused:
    """The store's own words are for people; what else it raised is in the log only."""
    said = f"{message}: {error}" if isinstance(error, StoreError) else message
    return RequestRefused(503, "store-failed", said, retry=True)
