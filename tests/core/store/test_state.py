"""A store in a file and the model, side by side; other stores join them in the tests of their plugins.

Whatever order things happen in, states, fences, refusals and counts agree; a request sent again changes
nothing; a crash loses what nobody was told of, and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from contract.store import Clock
from core.store.model import SILENCE, Lease, Model
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from marks import examples

from agentlightning.store.base import AttemptEnded, Conflict, Store
from agentlightning.store.sql.store import SQLStore
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import AttemptedRollout, AttemptStatus, Call, RolloutConfig, RolloutStatus, Span

ENDS = ["succeeded", "failed", "timeout", "unresponsive"]
KINDS = ["failed", "timeout", "unresponsive", "model-5xx"]
MOST = 3
"""Rollouts of one example: few, so that much happens to each."""
INDEX = st.integers(0, 31)
Ask = Callable[["Side", str | None], Awaitable[Any]]


class Side:
    """One real store, in a file."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path, self.clock = path, clock
        self.attempts: dict[Lease, str] = {}
        self.leases: dict[str, Lease] = {}

    def make(self) -> SQLStore:
        return SQLiteStore(self.path, clock=self.clock)

    async def open(self) -> None:
        self.owner = self.make()
        self.store: Store = self.owner

    async def close(self) -> None:
        await self.owner.close()

    async def crash(self) -> None:
        """End in the middle of a write, which is not acknowledged."""
        assert isinstance(self.owner, SQLiteStore)
        lost = asyncio.ensure_future(self.owner.enqueue_rollout("lost", rollout_id="ro-lost"))
        await asyncio.sleep(0)
        assert self.owner.db.connection.in_transaction and not lost.done()
        self.owner.db.connection.rollback()
        lost.cancel()
        await asyncio.wait([lost])
        await self.close()
        await self.open()

    def named(self, lease: AttemptedRollout) -> Lease:
        found = lease.rollout.rollout_id, lease.attempt.sequence_id
        assert lease.attempt.fence == lease.rollout.attempts == found[1]
        assert lease.rollout.status is RolloutStatus.PREPARING
        self.attempts[found] = lease.attempt.attempt_id
        self.leases[lease.attempt.attempt_id] = found
        return found

    async def seen(self) -> Any:
        """All that can be seen of it, without the ids of its attempts."""
        shown: dict[str, Any] = {}
        for rollout in await self.store.query_rollouts():
            attempts = await self.store.query_attempts(rollout.rollout_id)
            spans = await self.store.spans(rollout.rollout_id, None)
            calls = await self.store.query_calls(rollout.rollout_id, None)
            of_calls = Counter(self.leases[c.attempt_id][1] for c in calls)
            of_spans = Counter(self.leases[s.attempt_id][1] for s in spans)
            assert (rollout.end_time is not None) == rollout.status.final
            for attempt in attempts:
                assert (attempt.end_time is None) == (attempt.status.value in ("preparing", "running"))
            shown[rollout.rollout_id] = (
                *(rollout.status.value, rollout.attempts, [a.status.value for a in attempts]),
                *(of_spans, of_calls),
            )
        return shown, (await self.store.counts()).get("refused", {})


def outcome(work: Callable[[], Any]) -> Any:
    """What came of it: a value, or the type of the error."""
    try:
        return work()
    except (AttemptEnded, Conflict) as error:
        return type(error)


def any_rollout(machine: StoreMachine) -> bool:
    return bool(machine.model.rollouts)


def any_lease(machine: StoreMachine) -> bool:
    return bool(machine.leases)


class StoreMachine(RuleBasedStateMachine):
    """Rules are the store's methods, each run on all, and then (``twice``) sent again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.sides = self.make_sides()
        self.model = Model(self.clock)
        self.numbers = itertools.count()
        self.past: list[tuple[Ask, str, Any]] = []
        self.leases: list[Lease] = []
        for side in self.sides:
            self.do(side.open())

    def make_sides(self) -> list[Side]:
        paths = Path(self.folder.name)
        return [Side(paths / "0.sqlite", self.clock)]

    def teardown(self) -> None:
        for side in self.sides:
            self.do(side.close())
        self.loop.close()
        self.folder.cleanup()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def pick(self, index: int) -> Lease:
        """A lease: as often a current one as any that ever was."""
        current = [(i, len(r.attempts)) for i, r in self.model.rollouts.items() if r.attempts]
        some = current if index % 2 else self.leases
        return some[index // 2 % len(some)]

    def rollout(self, index: int) -> str:
        """Any rollout."""
        return list(self.model.rollouts)[index % len(self.model.rollouts)]

    def all(self, ask: Ask, expected: Callable[[], Any], twice: bool = False) -> Any:
        """Ask each store, and the model once; they agree."""
        request_id = f"q{next(self.numbers)}"
        answer = outcome(expected)
        for side in self.sides:
            for _ in range(1 + twice):
                assert outcome(lambda: self.do(run(ask, side, request_id))) == answer  # noqa: B023
        if not isinstance(answer, type) and answer != []:
            self.past.append((ask, request_id, answer))
        return answer

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """However late, a request that was answered is answered the same and not done again."""
        if self.past:
            ask, request_id, answer = data.draw(st.sampled_from(self.past))
            for side in self.sides:
                assert self.do(run(ask, side, request_id)) == answer

    @precondition(lambda self: len(self.model.rollouts) < MOST)
    @rule(
        most=st.integers(1, 3),
        retry_on=st.sampled_from([KINDS, KINDS, [], KINDS[:1], KINDS[1:]]),
        twice=st.booleans(),
    )
    def enqueue(self, most: int, retry_on: list[str], twice: bool) -> None:
        rollout_id = f"ro-{next(self.numbers)}"
        self.put(rollout_id, 0, most, retry_on, twice)

    @precondition(any_rollout)
    @rule(rollout=INDEX, content=st.integers(0, 1))
    def enqueue_what_is_known(self, rollout: int, content: int) -> None:
        self.put(self.rollout(rollout), content, 1, [], False)

    def put(self, rollout_id: str, content: int, most: int, retry_on: list[str], twice: bool) -> None:
        config = RolloutConfig(unresponsive_seconds=SILENCE, max_attempts=most, retry_on=retry_on)

        async def ask(side: Side, request_id: str | None) -> str:
            made = await side.store.enqueue_rollout(
                content, config=config, rollout_id=rollout_id, request_id=request_id
            )
            return made.status.value

        self.all(ask, lambda: self.model.enqueue(rollout_id, content, most, retry_on), twice)

    @rule(limit=st.integers(1, 2), twice=st.booleans())
    def dequeue(self, limit: int, twice: bool) -> None:
        async def ask(side: Side, request_id: str | None) -> list[Lease]:
            found = await side.store.dequeue_many_rollouts("w", limit, request_id=request_id)
            return [side.named(lease) for lease in found]

        self.leases += self.all(ask, lambda: self.model.dequeue(limit), twice)

    @precondition(any_rollout)
    @rule(rollout=INDEX, twice=st.booleans())
    def start_attempt(self, rollout: int, twice: bool) -> None:
        rollout_id = self.rollout(rollout)

        async def ask(side: Side, request_id: str | None) -> Lease:
            return side.named(await side.store.start_attempt(rollout_id, request_id=request_id))

        found = self.all(ask, lambda: self.model.start(rollout_id), twice)
        if not isinstance(found, type):
            self.leases.append(found)

    @precondition(any_rollout)
    @rule(rollout=INDEX, status=st.sampled_from([*ENDS[1:], "silence"]))
    def try_in_vain(self, rollout: int, status: str) -> None:
        """An attempt from start to end."""
        before = len(self.leases)
        self.start_attempt(rollout, twice=False)
        if len(self.leases) > before:
            if status == "silence":
                self.time_passes(SILENCE + 10)
            else:
                self.end(self.leases[-1], status, None, spans=0, twice=False)

    @precondition(any_lease)
    @rule(indices=st.lists(INDEX, min_size=1, max_size=3))
    def heartbeat(self, indices: list[int]) -> None:
        held = list(dict.fromkeys(self.pick(i) for i in indices))

        async def ask(side: Side, request_id: str | None) -> list[Lease]:
            ids = [side.attempts[lease] for lease in held]
            return [side.leases[i] for i in await side.store.heartbeat("w", ids, request_id=request_id)]

        self.all(ask, lambda: self.model.heartbeat(held))

    @precondition(any_lease)
    @rule(index=INDEX, n=st.integers(1, 3), twice=st.booleans())
    def add_spans(self, index: int, n: int, twice: bool) -> None:
        lease = self.pick(index)

        async def ask(side: Side, request_id: str | None) -> int:
            spans = [a_span(side, lease) for _ in range(n)]
            return (await side.store.add_many_spans(spans, request_id=request_id))[-1].sequence_id

        self.all(ask, lambda: self.model.add_spans(lease, n), twice)

    @precondition(any_lease)
    @rule(index=INDEX, n=st.integers(1, 2), fence=st.sampled_from([None, 0, -1]), twice=st.booleans())
    def add_calls(self, index: int, n: int, fence: int | None, twice: bool) -> None:
        lease = self.pick(index)
        given = None if fence is None else lease[1] + fence
        ids = [f"ca-{next(self.numbers)}" for _ in range(n)]

        async def ask(side: Side, request_id: str | None) -> None:
            calls = [
                Call(call_id=i, rollout_id=lease[0], attempt_id=side.attempts[lease], prompt_ids=[1])
                for i in ids
            ]
            await side.store.add_calls(calls, fence=given, request_id=request_id)

        self.all(ask, lambda: self.model.add_calls(lease, n, given), twice)

    @precondition(any_lease)
    @rule(
        index=INDEX,
        status=st.sampled_from([*ENDS, "running", "preparing"]),
        reason=st.sampled_from([None, "model-5xx: 503", "ValueError"]),
        spans=st.integers(0, 1),
        twice=st.booleans(),
    )
    def update_attempt(self, index: int, status: str, reason: str | None, spans: int, twice: bool) -> None:
        self.end(self.pick(index), status, reason, spans, twice)

    def end(self, lease: Lease, status: str, reason: str | None, spans: int, twice: bool) -> None:
        async def ask(side: Side, request_id: str | None) -> str:
            found = await side.store.update_attempt(
                *(lease[0], side.attempts[lease], AttemptStatus(status)),
                reason=reason,
                spans=[a_span(side, lease) for _ in range(spans)],
                request_id=request_id,
            )
            return found.status.value

        self.all(ask, lambda: self.model.update(lease, status, reason, spans), twice)

    @precondition(any_rollout)
    @rule(
        rollout=INDEX,
        status=st.sampled_from(["cancelled", "requeuing", "queuing", "failed", "succeeded"]),
        twice=st.booleans(),
    )
    def update_rollout(self, rollout: int, status: str, twice: bool) -> None:
        rollout_id = self.rollout(rollout)

        async def ask(side: Side, request_id: str | None) -> str:
            found = await side.store.update_rollout(rollout_id, RolloutStatus(status), request_id=request_id)
            return found.status.value

        self.all(ask, lambda: self.model.order(rollout_id, status), twice)

    @precondition(any_rollout)
    @rule(indices=st.lists(INDEX, min_size=1, max_size=2), twice=st.booleans())
    def requeue(self, indices: list[int], twice: bool) -> None:
        ids = list(dict.fromkeys(self.rollout(i) for i in indices))

        async def ask(side: Side, request_id: str | None) -> list[str]:
            found = await side.store.requeue_rollouts(ids, reason="resumed", request_id=request_id)
            return [r.status.value for r in found]

        self.all(ask, lambda: self.model.requeue(ids), twice)

    @rule(seconds=st.sampled_from([20.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds
        late = self.model.expire()
        for side in self.sides:
            assert self.do(side.owner.expire()) == late

    @rule(seconds=st.sampled_from([0.0, 20.0, 1000.0]))
    def crash(self, seconds: float) -> None:
        self.clock.now += seconds
        self.model.reopen()
        for side in self.sides:
            self.do(side.crash())

    @invariant()
    def they_agree(self) -> None:
        expected = {
            i: (r.status, len(r.attempts), r.attempts, +r.spans, +r.calls)
            for i, r in self.model.rollouts.items()
        }
        for side in self.sides:
            assert self.do(side.seen()) == (expected, dict(self.model.refused))


def a_span(side: Side, lease: Lease) -> Span:
    return Span(rollout_id=lease[0], attempt_id=side.attempts[lease], name="tool")


async def run(ask: Ask, side: Side, request_id: str | None) -> Any:
    return await ask(side, request_id)


StoreMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
TestStoreMachine = StoreMachine.TestCase
