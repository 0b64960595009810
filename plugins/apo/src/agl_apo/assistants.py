"""Critic and editor: models that write about prompts. Each request is a rollout of its own in the store.

So their calls are recorded by the gateway like any other, and no rollout of the agent contains them.
Invariant: a request has an id; once it is answered, or has failed, it is never sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp

from agentlightning.algorithms.context import Context
from agentlightning.gateway import AttemptInfo, Upstream
from agentlightning.store.base import NotFound
from agentlightning.types import (
    LLM,
    AttemptedRollout,
    AttemptStatus,
    Call,
    Rollout,
    RolloutConfig,
    RolloutStatus,
)
from agl_apo.ledger import Ledger
from agl_apo.templates import BadTemplate

T = TypeVar("T")
ONCE = RolloutConfig(max_attempts=1, timeout_seconds=None, unresponsive_seconds=None)
"""No runner serves these rollouts: the store must neither end nor queue them."""
RETRIED = (408, 429)
"""Statuses below 500 after which a request is sent again."""
Messages = Sequence[Mapping[str, str]]


class Written(NamedTuple, Generic[T]):
    """What was made of an answer, and the rollout in which it was written."""

    value: T
    rollout_id: str


class Assistants:
    """Asks critic and editor through the run's gateway.

    ``endpoints``: role (``critic``, ``editor``) → its endpoint, or the name of one of the run's policies.
    ``tries``: requests in all where the endpoint answers 408, 429 or 5xx, or not at all. ``wait``: seconds
    before the second try, doubled for each further one. ``timeout``: seconds of one try.
    """

    def __init__(
        self,
        context: Context,
        ledger: Ledger,
        endpoints: Mapping[str, LLM | str],
        *,
        tries: int = 3,
        wait: float = 0.5,
        timeout: float = 600.0,
    ) -> None:
        self._context, self._ledger = context, ledger
        self._tries, self._wait = tries, wait
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._routes = {role: self._open_route(role, given) for role, given in endpoints.items()}
        self._sampling = {
            role: dict(given.sampling_parameters)
            for role, given in endpoints.items()
            if isinstance(given, LLM)
        }
        self.failures: Counter[str] = Counter()
        """``critic: http-503`` and the like → requests without a usable answer."""
        self.reused = 0
        """Requests that an earlier life of the run had sent."""

    def _open_route(self, role: str, given: LLM | str) -> str:
        if isinstance(given, str):
            return given
        route = f"prompts-{role}"
        upstream = Upstream(
            policy=route,
            url=given.endpoint,
            replicas=given.replicas,
            model=given.model,
            api_key=given.api_key,
            trainable=False,
        )
        self._context.gateway.add_route(upstream)
        self._ledger.models[route] = given.model
        return route

    async def ask(
        self, role: str, key: str, messages: Messages, read: Callable[[str], T], **sampling: Any
    ) -> Written[T] | None:
        """Ask ``role`` once under ``key``, and return what ``read`` makes of the text.

        ``None``: there is no usable answer, which is counted with its reason. ``read`` raises
        :class:`BadTemplate` for a text that cannot be used. Raises :class:`BudgetSpent` before a call that
        the budget does not cover.
        """
        rollout_id = self._rollout_id(role, key)
        known = await self._known(rollout_id)
        if known is not None and known.status.final:
            self.reused += 1
            calls = await self._context.store.query_calls(rollout_id, None)
            self._ledger.count(role, calls)
            if known.status != RolloutStatus.SUCCEEDED:
                self._count_failure(role, known.reason or "unknown")
                return None
            return Written(read(text_of(calls)), rollout_id)
        return await self._answered(role, key, known, messages, read, sampling)

    def _rollout_id(self, role: str, key: str) -> str:
        name = f"{self._context.run_id}/prompts/{role}/{key}"
        return f"ro-{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    async def _known(self, rollout_id: str) -> Rollout | None:
        try:
            return await self._context.store.get_rollout_by_id(rollout_id)
        except NotFound:
            return None

    async def _answered(
        self,
        role: str,
        key: str,
        known: Rollout | None,
        messages: Messages,
        read: Callable[[str], T],
        sampling: Mapping[str, Any],
    ) -> Written[T] | None:
        """Get an answer, store what became of it, and count its calls."""
        store, rollout_id = self._context.store, self._rollout_id(role, key)
        calls = [] if known is None else await store.query_calls(rollout_id, None)
        if not text_of(calls):
            self._ledger.require()
        lease = await self._lease(role, key, known, messages)
        reason: str | None = None
        value: T | None = None
        try:
            if not text_of(calls):  # else the earlier life got the answer, and died before it wrote so
                reason = await self._send(role, lease, messages, sampling)
                calls = await store.query_calls(rollout_id, None)
            if reason is None:
                value = read(text_of(calls))
        except BadTemplate as error:
            reason = f"{error.kind}: {error}"
        finally:
            await self._context.gateway.close_attempt(lease.attempt.attempt_id)
        status = AttemptStatus.SUCCEEDED if reason is None else AttemptStatus.FAILED
        await store.update_attempt(rollout_id, lease.attempt.attempt_id, status, reason=reason)
        self._ledger.count(role, calls)
        if reason is not None or value is None:
            self._count_failure(role, reason or "empty")
            return None
        return Written(value, rollout_id)

    def _count_failure(self, role: str, reason: str) -> None:
        self.failures[f"{role}: {reason.partition(':')[0]}"] += 1

    async def _lease(
        self, role: str, key: str, known: Rollout | None, messages: Messages
    ) -> AttemptedRollout:
        store, run_id = self._context.store, self._context.run_id
        if known is not None:
            return await store.start_attempt(known.rollout_id)
        return await store.start_rollout(
            {"messages": [dict(message) for message in messages]},
            mode="val",
            resources_id=self._context.resources.ids.get(self._context.policy),
            config=ONCE,
            metadata={"prompts": role, "key": key, "tags": {"agent": role}},
            rollout_id=self._rollout_id(role, key),
            run_id=run_id,
            group_id=f"{run_id}:prompts/{role}/{key}",
        )

    async def _send(
        self, role: str, lease: AttemptedRollout, messages: Messages, sampling: Mapping[str, Any]
    ) -> str | None:
        """Send the request until it is answered; return why there is no answer, ``None`` if there is one."""
        gateway, route = self._context.gateway, self._routes[role]
        url = f"{gateway.url}/chat/completions"
        info = AttemptInfo.of(lease.rollout, lease.attempt, {"re:.*": route})
        headers = {"Authorization": f"Bearer {gateway.open_attempt(info)}"}
        body = {"model": route, "messages": list(messages), **sampling, **self._sampling.get(role, {})}
        reason = "no-answer"
        async with aiohttp.ClientSession(timeout=self._timeout) as http:
            for number in range(self._tries):
                if number:
                    await asyncio.sleep(self._wait * 2 ** (number - 1))
                    headers["x-stainless-retry-count"] = str(number)
                try:
                    async with http.post(url, json=body, headers=headers) as got:
                        text = await got.text()
                        if got.status == 200:
                            return None
                        reason = f"http-{got.status}: {text[:300]}"
                        if got.status < 500 and got.status not in RETRIED:
                            return reason
                except (aiohttp.ClientError, TimeoutError) as error:
                    reason = f"no-answer: {type(error).__name__} {error}"
        return reason


def text_of(calls: Sequence[Call]) -> str:
    """Return the text of the last answered call; an empty one without any."""
    for call in reversed(calls):
        if call.status == "ok" and call.response is not None:
            content = call.response.get("content")
            return content.strip() if isinstance(content, str) else ""
    return ""
