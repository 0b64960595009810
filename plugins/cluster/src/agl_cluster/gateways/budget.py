"""One budget for all gateways of a run: a call asks the run for its place, and tells it what it has cost.

Invariants: the run's :class:`Spending` alone decides, so a limit holds for all processes together. The places
of a process that has died are given back, and its calls that are on record are counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field

import msgspec

from agentlightning.gateway.admission.spending import SPENT_CODE, Spending
from agentlightning.gateway.errors import CallFailure
from agentlightning.store.base import Store
from agentlightning.types import Call
from agl_cluster.gateways.messages import AskPlace, FromProcess, LeavePlace, Placed, Recorded

log = logging.getLogger(__name__)
_HEAVY = {"request": None, "response": None, "prompt_ids": None, "response_ids": None, "logprobs": None}
"""Fields of a call that its price does not depend on, where it has its counts."""


class SharedSpending(Spending):
    """The budget as a gateway process has it: the run decides."""

    def __init__(self, send: Callable[[FromProcess], None], *, asks: bool, tells: bool, whole: bool) -> None:
        """``asks``: there is a limit. ``tells``: the run counts calls; ``whole``: it wants all of them."""
        super().__init__()
        self._send, self._asks, self._tells, self._whole = send, asks, tells, whole
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Placed]] = {}

    def place(self, store: Store, rollout_id: str) -> AbstractAsyncContextManager[None]:
        """Hold a place for one call; raise :class:`CallFailure` if a budget is spent."""
        return self._asked_place(rollout_id) if self._asks else nullcontext()

    @asynccontextmanager
    async def _asked_place(self, rollout_id: str) -> AsyncIterator[None]:
        self._number += 1
        number = self._number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send(AskPlace(number, rollout_id))
        try:
            placed = await answer
            if placed.spent is not None:
                self.refused += 1
                raise CallFailure(403, SPENT_CODE, placed.spent, retry=False)
            if placed.failed is not None:
                raise CallFailure(503, "store-failed", placed.failed)
            yield
        finally:
            self._waiting.pop(number, None)
            self._send(LeavePlace(number))

    def placed(self, answer: Placed) -> None:
        """Take the run's answer."""
        waiting = self._waiting.get(answer.place)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def count(self, calls: Sequence[Call], rollout: str | None) -> None:
        """Tell the run of calls that are on record."""
        if self._tells and rollout is not None:
            self._send(Recorded(rollout, list(calls) if self._whole else [_light(call) for call in calls]))


def _light(call: Call) -> Call:
    """The call without its content."""
    counts = {
        "prompt_tokens": call.prompt_tokens or _len(call.prompt_ids),
        "completion_tokens": call.completion_tokens or _len(call.response_ids),
    }
    return msgspec.structs.replace(call, **_HEAVY, **counts)


def _len(ids: object) -> int:
    return len(ids) if hasattr(ids, "__len__") else 0


@dataclass
class _Watched:
    """A rollout with calls under way: those of its calls that are counted since ``since``."""

    since: float
    places: int = 0
    counted: set[str] = field(default_factory=set)


@dataclass(eq=False)
class _Held:
    """A call that holds a place, or waits for one."""

    rollout_id: str
    task: asyncio.Task[None] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    begun: bool = False


class Places:
    """The places that the calls of all gateway processes hold, at the run's end. ``on_call``: called with
    each call that is on record.
    """

    def __init__(self, spending: Spending, store: Store, on_call: Callable[[Call], None] | None) -> None:
        self.spending, self.on_call = spending, on_call
        self.hook_errors = 0
        self._store = store
        self._held: dict[tuple[int, int], _Held] = {}
        """By process and number of the place."""
        self._watched: dict[str, _Watched] = {}

    def ask(self, process: int, asked: AskPlace, answer: Callable[[Placed], None]) -> None:
        """Hold a place for a call of ``process``, once the budget lets it begin."""
        watched = self._watched.setdefault(asked.rollout_id, _Watched(time.time()))
        watched.places += 1
        held = self._held[process, asked.place] = _Held(asked.rollout_id)
        held.task = asyncio.create_task(self._hold(held, asked.place, answer))

    async def _hold(self, held: _Held, place: int, answer: Callable[[Placed], None]) -> None:
        try:
            async with self.spending.place(self._store, held.rollout_id):
                held.begun = True
                answer(Placed(place))
                await held.ended.wait()
        except CallFailure as spent:
            answer(Placed(place, spent=str(spent)))
        except Exception as error:
            log.exception("the budget of rollout %s could not be read", held.rollout_id)
            answer(Placed(place, failed=f"the budget could not be read: {type(error).__name__}"))

    def leave(self, process: int, place: int) -> None:
        """Give a place back, or stop waiting for it."""
        if (held := self._held.pop((process, place), None)) is None:
            return
        held.ended.set()
        if not held.begun and held.task is not None:
            held.task.cancel()
        watched = self._watched[held.rollout_id]
        watched.places -= 1
        if not watched.places:
            del self._watched[held.rollout_id]

    def recorded(self, message: Recorded) -> None:
        """Count calls, and hand them to ``on_call``."""
        self.spending.count(message.calls, message.rollout_id)
        if (watched := self._watched.get(message.rollout_id)) is not None:
            watched.counted |= {call.call_id for call in message.calls}
        for call in message.calls if self.on_call else ():
            try:
                assert self.on_call is not None
                self.on_call(call)
            except Exception:
                self.hook_errors += 1
                if self.hook_errors == 1:
                    log.exception("on_call failed; further failures are only counted")

    async def died(self, process: int) -> None:
        """Count the calls that a dead process had stored and not told, and give its places back."""
        mine = {place: held.rollout_id for (of, place), held in self._held.items() if of == process}
        for rollout_id in sorted(set(mine.values())):
            calls = await self._store.query_calls(rollout_id, None)
            watched = self._watched[rollout_id]
            late = [c for c in calls if c.call_id not in watched.counted and _ended_since(c, watched.since)]
            if late:
                self.recorded(Recorded(rollout_id, late))
        for place in mine:
            self.leave(process, place)


def _ended_since(call: Call, since: float) -> bool:
    return call.end_time is not None and call.end_time >= since
