"""A leased attempt at a real gateway and store, with the record and verdicts of its calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from agentlightning.capture import end_attempt
from agentlightning.credit.verdicts import Verdict, verdicts
from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Call, Record
from agl_testing.contract.recording import Recording
from agl_testing.scripted import Exchange


class ModelServer(Protocol):
    """A scripted or real model server of a policy called ``policy``."""

    @property
    def url(self) -> str:
        """Return the base URL for an OpenAI client."""


class Leased(Recording):
    """A recording of an attempt of a real store and gateway."""

    def __init__(self, store: SQLiteStore, gateway: Gateway, rollout_id: str, info: AttemptInfo) -> None:
        super().__init__("leased", gateway.url)
        self._store, self._gateway = store, gateway
        self.context.rollout_id, self.context.attempt_id = rollout_id, info.attempt_id
        self.context.key = gateway.open_attempt(info)

    async def recorded(self) -> list[Call]:
        """Return the calls that are on record by now."""
        return await self._store.query_calls(self.context.rollout_id, self.context.attempt_id)

    async def finish(self) -> tuple[Record, list[Verdict]]:
        """End the attempt as the runner does. Return its record, and the verdict of each call in order."""
        context = self.context
        end_attempt(context.attempt_id)
        await self._gateway.close_attempt(context.attempt_id)
        await self._store.update_attempt(
            context.rollout_id, context.attempt_id, AttemptStatus.SUCCEEDED, spans=self.spans
        )
        (record,) = await self._store.records([context.rollout_id])
        found = verdicts(record)
        return record, [found[call.call_id] for call in record.calls]


def assert_one_row(record: Record, log: Sequence[Exchange]) -> None:
    """Assert that each recorded call has the engine's ids, and that each prompt begins with the prompt and
    the answer of the call before it: all calls are trained in one row.
    """
    whole: list[int] = []
    assert len(record.calls) == len(log) and log
    for call, exchange in zip(record.calls, log, strict=True):
        prompt, response = list(call.prompt_ids or ()), list(call.response_ids or ())
        assert prompt == exchange.prompt_ids and response == exchange.answers[0].ids
        assert prompt[: len(whole)] == whole, f"call {call.call_id} does not begin with the call before it"
        whole = prompt + response


@asynccontextmanager
async def leased_attempt(server: ModelServer, folder: Path, **route: Any) -> AsyncIterator[Leased]:
    """Open one attempt at a gateway that forwards to ``server``, with a store in ``folder``. ``route``: other
    fields of its :class:`Upstream`.
    """
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
