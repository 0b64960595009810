"""An attempt whose spans are kept, alone or at a real gateway, for core's own tests of capture.

Its calls are compared with the log of ``contract.model_server``. ``agl_testing.contract`` tests adapters.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from contract.model_server import Exchange, ModelServer

from agentlightning import semconv
from agentlightning.capture import end_attempt
from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.capture.sdk_call import LOGPROB_COUNT
from agentlightning.credit.verdicts import Verdict, verdicts
from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Call, Record, Span
from agentlightning.types.arrays import unpack_float32
from agentlightning.types.tokens import TokenIds, tokens_digest


class Recording:
    """One attempt. With ``gateway=None`` the server is no gateway, and the spans carry the token ids."""

    def __init__(self, name: str, gateway: str | None) -> None:
        self.spans: list[Span] = []
        self.context = AttemptContext(
            rollout_id=f"ro-{name}",
            attempt_id=f"at-{name}",
            sink=self.spans.append,
            key=f"agl-key-{name}",
            gateway=gateway,
        )

    def active(self) -> AbstractContextManager[AttemptContext]:
        return attempt_context(self.context)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name.startswith(name)]

    @property
    def calls(self) -> list[Span]:
        """The spans of calls, in the order in which the calls began."""
        return sorted(self.named(semconv.CALL_SPAN), key=lambda span: span.start_time)


def assert_exact(recording: Recording, log: Iterable[Exchange]) -> None:
    """Each answered request is one span of the attempt, with the same tokens, in the same order."""
    exchanges = [exchange for exchange in log if exchange.status == 200]
    calls = [span for span in recording.calls if span.status == "ok"]
    answered = [span.attributes.get(semconv.RESPONSE_ID) for span in calls]
    assert answered == [exchange.response_id for exchange in exchanges]
    context = recording.context
    for span, exchange in zip(calls, exchanges, strict=True):
        assert (span.rollout_id, span.attempt_id) == (context.rollout_id, context.attempt_id)
        assert_same_tokens(span, exchange)


def assert_same_tokens(span: Span, exchange: Exchange) -> None:
    """The span has the server's digest and counts, and the server's ids and logprobs if it has any."""
    attributes = span.attributes
    answer = exchange.answers[attributes[semconv.CHOICE]]
    assert attributes[semconv.TOKENS_DIGEST] == tokens_digest(exchange.prompt_ids, answer.ids)
    assert attributes[semconv.PROMPT_COUNT] == len(exchange.prompt_ids)
    assert attributes[semconv.RESPONSE_COUNT] == attributes[LOGPROB_COUNT] == len(answer.ids)
    if semconv.RESPONSE_IDS in attributes:
        assert TokenIds.unpacked(b64decode(attributes[semconv.PROMPT_IDS])) == exchange.prompt_ids
        assert TokenIds.unpacked(b64decode(attributes[semconv.RESPONSE_IDS])) == answer.ids
        assert unpack_float32(b64decode(attributes[semconv.LOGPROBS])) == answer.logprobs


class Leased(Recording):
    """A recording of an attempt of a real store and gateway."""

    def __init__(self, store: SQLiteStore, gateway: Gateway, rollout_id: str, info: AttemptInfo) -> None:
        super().__init__("leased", gateway.url)
        self._store, self._gateway = store, gateway
        self.context.rollout_id, self.context.attempt_id = rollout_id, info.attempt_id
        self.context.key = gateway.open_attempt(info)

    async def recorded(self) -> list[Call]:
        """The calls that are on record by now."""
        return await self._store.query_calls(self.context.rollout_id, self.context.attempt_id)

    async def finish(self) -> tuple[Record, list[Verdict]]:
        """End the attempt as the runner does. Return its record, and the verdict of each call in order."""
        rollout_id, attempt_id = self.context.rollout_id, self.context.attempt_id
        end_attempt(attempt_id)
        await self._gateway.close_attempt(attempt_id)
        ended = AttemptStatus.SUCCEEDED
        await self._store.update_attempt(rollout_id, attempt_id, ended, spans=self.spans)
        (record,) = await self._store.records([rollout_id])
        found = verdicts(record)
        return record, [found[call.call_id] for call in record.calls]


@asynccontextmanager
async def leased_attempt(server: ModelServer, folder: Path, **route: Any) -> AsyncIterator[Leased]:
    """One attempt at a gateway that forwards to ``server``. ``route``: more fields of its ``Upstream``."""
    store = SQLiteStore(folder / "store.sqlite")
    gateway = Gateway(store, Keys())
    gateway.add_route(Upstream(policy="policy", url=server.url, model="policy", **route))
    await gateway.start()
    try:
        lease = await store.start_rollout({"question": 1}, worker_id="contract")
        rollout_id, attempt = lease.rollout.rollout_id, lease.attempt
        info = AttemptInfo(rollout_id=rollout_id, attempt_id=attempt.attempt_id, fence=attempt.fence, seed=1)
        yield Leased(store, gateway, rollout_id, info)
    finally:
        await gateway.stop()
        await store.close()
