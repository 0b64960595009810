"""Asks judges. Each question is a rollout of its own in the run's store, which holds the judge's calls.

So a judge's calls are recorded by the gateway like any other, counted by the budget, and never part of a
rollout of the agent; the policy is frozen, and its key stays with the gateway. A question's id is made of its
content: who is asked, what, and how often the same was asked before. Invariants: a question that was answered
in the run is never sent again, whoever asks it; the judge is told of an answer that cannot be used and
asked again, and after that there is no answer.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import aiohttp

from agentlightning.gateway import AttemptInfo
from agentlightning.gateway.base import RunGateway
from agentlightning.store.base import NotFound, Store
from agentlightning.types import (
    AttemptedRollout,
    AttemptStatus,
    Call,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    UsageError,
)

Message = Mapping[str, Any]


class BadVerdict(ValueError):
    """What a judge or a function said cannot be used; the message says why."""


T = TypeVar("T")
ONCE = RolloutConfig(max_attempts=1, timeout_seconds=None, unresponsive_seconds=None)
"""No runner serves these rollouts: the store must neither end nor queue them."""
RETRIED = (408, 429)
"""Statuses below 500 after which a request is sent again."""
NO_ANSWER, BAD_VERDICT = "no-answer", "bad-verdict"
JUDGE = "judge"
"""In the metadata of a question: who was asked. Beside it stand ``group`` and ``rollouts``: about whom."""


class Verdict(NamedTuple, Generic[T]):
    """What was made of a judge's answer; ``None``: there is none, for ``reason``."""

    value: T | None
    rollout_id: str
    """The question, which holds the judge's calls."""
    reason: str = ""


class JudgeClient:
    """Asks the frozen policies of ``gateway`` for the run ``run_id``. ``gateway=None``: answers come from the
    store alone, and a question that it does not have is :class:`UsageError`.

    ``asks``: answers that are asked for until one can be used. ``tries``: requests in all where the endpoint
    answers 408, 429 or 5xx, or not at all; ``wait``: seconds before the second, doubled for each further one.
    ``timeout``: seconds of one. ``concurrency``: questions at a time. ``count``: told what became of them.
    ``check`` raises for a judge that cannot be asked.
    """

    def __init__(
        self,
        store: Store,
        gateway: RunGateway | None,
        run_id: str,
        *,
        check: Callable[[str], None] = lambda judge: None,
        count: Callable[[str, float], None] = lambda what, n: None,
        asks: int = 3,
        tries: int = 4,
        wait: float = 0.5,
        timeout: float = 600.0,
        concurrency: int = 16,
    ) -> None:
        self._store, self._gateway, self._run_id, self._count = store, gateway, run_id, count
        self._check = check
        self._asks, self._tries, self._wait = asks, tries, wait
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._gate = asyncio.Semaphore(concurrency)
        self._locks: dict[str, asyncio.Lock] = {}
        """Question → held by who asks it: others wait for the answer."""
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> JudgeClient:
        self._http = aiohttp.ClientSession(timeout=self._timeout)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._http is not None
        await self._http.close()

    async def ask(
        self,
        judge: str,
        messages: Sequence[Message],
        read: Callable[[str], T],
        *,
        about: Mapping[str, Any] | None = None,
        repeat: int = 0,
        **sampling: Any,
    ) -> Verdict[T]:
        """Return what ``read`` makes of the judge's answer. ``about``: whom the question is about, for the
        record. ``sampling``: fields of the request; the temperature is 0 unless they say otherwise.
        """
        self._check(judge)
        body = {"temperature": 0.0, **sampling, "messages": [dict(one) for one in messages]}
        asked = json.dumps([self._run_id, judge, repeat, body], sort_keys=True, ensure_ascii=False)
        key = hashlib.sha256(asked.encode()).hexdigest()
        async with self._locks.setdefault(key, asyncio.Lock()), self._gate:
            number = 0
            while True:  # an endpoint that did not answer is asked anew, under the next number
                rollout_id = f"ro-{hashlib.sha256(f'{key}/{number}'.encode()).hexdigest()[:16]}"
                known = await self._known(rollout_id)
                if known is None or not (known.reason or "").startswith(NO_ANSWER):
                    break
                number += 1
            calls = [] if known is None else await self._store.query_calls(rollout_id, None)
            if known is not None and known.status.final:
                self._count("cached", 1)
                return self._replayed(rollout_id, known, calls, read)
            return await self._answered(judge, rollout_id, known, calls, body, read, about or {})

    async def _known(self, rollout_id: str) -> Rollout | None:
        try:
            return await self._store.get_rollout_by_id(rollout_id)
        except NotFound:
            return None

    def _replayed(
        self, rollout_id: str, known: Rollout, calls: Sequence[Call], read: Callable[[str], T]
    ) -> Verdict[T]:
        """Return what an earlier question was answered with."""
        if known.status != RolloutStatus.SUCCEEDED:
            return Verdict(None, rollout_id, known.reason or BAD_VERDICT)
        try:
            return Verdict(read(answers(calls)[-1]), rollout_id)
        except BadVerdict as error:
            return Verdict(None, rollout_id, f"{BAD_VERDICT}: {error}")

    async def _answered(
        self,
        judge: str,
        rollout_id: str,
        known: Rollout | None,
        calls: Sequence[Call],
        body: Mapping[str, Any],
        read: Callable[[str], T],
        about: Mapping[str, Any],
    ) -> Verdict[T]:
        """Ask until an answer can be used, and store what became of it. ``calls``: those of an earlier life,
        which died before it wrote so.
        """
        if self._gateway is None:
            raise UsageError(
                f"the run {self._run_id} has no answer of the judge {judge!r} to this question, and nobody "
                "is there to ask; give the judge"
            )
        lease = await self._lease(judge, rollout_id, known, body, about)
        key = self._gateway.open_attempt(AttemptInfo.of(lease.rollout, lease.attempt, {"re:.*": judge}))
        before, talk = answers(calls), list(body["messages"])
        value: T | None = None
        reason = ""
        try:
            for number in range(self._asks):
                if number < len(before):
                    text = before[number]
                else:
                    reason, text = await self._send(judge, key, {**body, "messages": talk})
                    if reason:
                        break
                try:
                    value, reason = read(text), ""
                    break
                except BadVerdict as error:
                    self._count("asked_again" if number + 1 < self._asks else "given_up", 1)
                    reason = f"{BAD_VERDICT}: {error}"
                    again = f"That cannot be used: {error}. Answer again, in that form alone."
                    talk += [{"role": "assistant", "content": text}, {"role": "user", "content": again}]
        finally:
            await self._gateway.close_attempt(lease.attempt.attempt_id)
        status = AttemptStatus.FAILED if reason else AttemptStatus.SUCCEEDED
        await self._store.update_attempt(
            rollout_id, lease.attempt.attempt_id, status, reason=reason[:1000] or None
        )
        made = (await self._store.query_calls(rollout_id, None))[len(calls) :]
        self._count("judge_calls", len(made))
        self._count("judge_tokens", sum((c.prompt_tokens or 0) + (c.completion_tokens or 0) for c in made))
        return Verdict(value, rollout_id, reason)

    async def _lease(
        self,
        judge: str,
        rollout_id: str,
        known: Rollout | None,
        body: Mapping[str, Any],
        about: Mapping[str, Any],
    ) -> AttemptedRollout:
        if known is not None:
            return await self._store.start_attempt(rollout_id)
        return await self._store.start_rollout(
            {"messages": body["messages"]},
            mode="val",
            config=ONCE,
            metadata={JUDGE: judge, **about, "tags": {"agent": JUDGE}},
            rollout_id=rollout_id,
            run_id=self._run_id,
            group_id=f"{self._run_id}:judge/{rollout_id}",
        )

    async def _send(self, judge: str, key: str, body: Mapping[str, Any]) -> tuple[str, str]:
        """Send a request until it is answered; return why there is no answer, and the answer's text."""
        assert self._gateway is not None and self._http is not None
        headers, reason = {"Authorization": f"Bearer {key}"}, NO_ANSWER
        for number in range(self._tries):
            if number:
                await asyncio.sleep(self._wait * 2 ** (number - 1))
                headers["x-stainless-retry-count"] = str(number)
            try:
                url = f"{self._gateway.url}/chat/completions"
                async with self._http.post(url, json={"model": judge, **body}, headers=headers) as got:
                    text = await got.text()
                    if got.status == 200:
                        return "", _content(text)
                    reason = f"{NO_ANSWER}: HTTP {got.status}: {text[:300]}"
                    final = got.headers.get("x-should-retry") == "false"
                    if final or (got.status < 500 and got.status not in RETRIED):
                        break
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = f"{NO_ANSWER}: {type(error).__name__} {error}"
        self._count(NO_ANSWER.replace("-", "_"), 1)
        return reason, ""


def _content(text: str) -> str:
    """Return the text of a chat completion; an empty one where it has none."""
    try:
        content = json.loads(text)["choices"][0]["message"].get("content")
    except (ValueError, LookupError, AttributeError, TypeError):
        return ""
    return content if isinstance(content, str) else ""


def answers(calls: Sequence[Call]) -> list[str]:
    """Return the texts of answered calls, in order of arrival."""
    good = [call for call in calls if call.status == "ok" and call.response is not None]
    texts = [call.response.get("content") for call in good if call.response is not None]
    return [text if isinstance(text, str) else "" for text in texts]
