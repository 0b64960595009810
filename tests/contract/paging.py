"""What every store does with long lists, numbers of spans, sums, and what is no longer needed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from contract.storing import Clock, call, span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

from agentlightning.store.base import AttemptEnded, Conflict, NotFound, Store
from agentlightning.store.pages import pages
from agentlightning.types import (
    AttemptedRollout,
    AttemptStatus,
    AuditLink,
    Rollout,
    RolloutFingerprint,
    Span,
    StepReport,
)

DONE = AttemptStatus.SUCCEEDED


async def flat(found: AsyncIterator[list[Any]]) -> list[Any]:
    """All items of all pages, none of which is empty."""
    items: list[Any] = []
    async for page in found:
        assert page
        items += page
    return items


async def leased(store: Store, run_id: str | None = None, **fields: Any) -> AttemptedRollout:
    """A fresh rollout under a lease."""
    made = await store.enqueue_rollout({"q": 1}, run_id=run_id, **fields)
    return await store.start_attempt(made.rollout_id, worker_id="w")


async def finish(store: Store, lease: AttemptedRollout, status: AttemptStatus = DONE) -> None:
    """End an attempt."""
    await store.update_attempt(lease.rollout.rollout_id, lease.attempt.attempt_id, status)


class PagingContract:
    """``limit`` and ``after`` of every query."""

    async def test_rollouts_are_paged_while_more_arrive(self, store: Store) -> None:
        made = await store.enqueue_many_rollouts([Rollout(rollout_id="", input=i) for i in range(7)])
        seen: list[Any] = []
        async for page in pages(store.query_rollouts, size=3, sort_order="desc"):
            seen += [r.input for r in page]
            await store.enqueue_rollout("late")
        assert seen == [6, 5, 4, 3, 2, 1, 0]
        assert [r.input for r in await flat(pages(store.query_rollouts, size=3))][:7] == list(range(7))
        ids = [r.rollout_id for r in made]
        some = await store.query_rollouts(rollout_ids=ids, limit=2, after=ids[3])
        assert [r.input for r in some] == [4, 5]
        tasked = await store.enqueue_rollout(1, task_id="t9")
        assert [r.rollout_id for r in await store.query_rollouts(task_id="t9")] == [tasked.rollout_id]
        with pytest.raises(ValueError, match="sort_order"):
            await store.query_rollouts(sort_order="up")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="limit must be at least 1"):
            await store.query_rollouts(limit=-1)

    async def test_rollouts_by_many_ids_keep_their_order(self, store: Store) -> None:
        made = await store.enqueue_many_rollouts([Rollout(rollout_id="", input=i) for i in range(700)])
        ids = [r.rollout_id for r in reversed(made)]
        found = await store.query_rollouts(rollout_ids=ids, limit=600)
        assert [r.input for r in found] == list(range(600))

    async def test_attempts_calls_and_spans_are_paged(self, store: Store) -> None:
        lease = await leased(store)
        rollout_id = lease.rollout.rollout_id
        for _ in range(4):
            lease = await store.start_attempt(rollout_id)
        attempts = await store.query_attempts(rollout_id)
        assert len(attempts) == 5
        assert await flat(pages(store.query_attempts, rollout_id, size=2)) == attempts
        await store.add_calls([call(lease, i, choice=c) for i in (2, 0, 1) for c in (1, 0)])
        await store.add_many_spans([span(lease, f"s{i}", start_time=float(4 - i)) for i in range(4)])
        for attempt_id in ("latest", None):
            calls = await store.query_calls(rollout_id, attempt_id)
            assert len(calls) == 6
            assert await flat(pages(store.query_calls, rollout_id, attempt_id, size=2)) == calls
            spans = await store.query_spans(rollout_id, attempt_id)
            assert len(spans) == 10
            assert await flat(pages(store.query_spans, rollout_id, attempt_id, size=3)) == spans
            by_time = await flat(
                pages(store.query_spans, rollout_id, attempt_id, size=3, sort_by="start_time", name="s2")
            )
            assert [s.name for s in by_time] == ["s2"]
        for method in (store.query_attempts, store.query_calls, store.query_spans):
            with pytest.raises(NotFound, match="after"):
                await method(rollout_id, after="x/1")

    async def test_spans_are_filtered_and_sorted(self, store: Store) -> None:
        lease = await leased(store)
        rollout_id = lease.rollout.rollout_id
        names = ["tool.add", "tool.sub", "think"]
        await store.add_many_spans(
            [
                span(
                    lease,
                    n,
                    trace_id=f"t{i % 2}",
                    span_id=f"s{i}",
                    parent_id="p" if i else None,
                    start_time=9.0 - i,
                )
                for i, n in enumerate(names)
            ]
        )

        async def found(**given: Any) -> list[str]:
            return [s.name for s in await store.query_spans(rollout_id, **given)]

        assert await found(name_contains="tool.") == names[:2]
        assert await found(trace_id="t1") == names[1:2] and await found(span_id="s2") == names[2:]
        assert await found(parent_id="p", name="think") == ["think"]
        assert await found(sort_by="start_time") == names[::-1] == await found(sort_order="desc")
        assert await found(sort_by="name", limit=2) == ["think", "tool.add"]
        with pytest.raises(ValueError, match="sort_by"):
            await found(sort_by="size")

    async def test_runs_steps_fingerprints_workers_and_resources_are_paged(
        self, store: Store, clock: Clock
    ) -> None:
        for i in range(5):
            await store.add_run(f"r{i}", {"i": i})
            clock.now += i % 2
            report = StepReport(run_id="r0", step=i // 2, policy=f"p/{i % 2}", policy_version=i)
            fingerprints = [
                RolloutFingerprint(run_id="r0", step=report.step, policy=report.policy, rollout_id=f"ro-{n}")
                for n in range(3)
            ]
            await store.add_step(report, fingerprints)
            await store.add_link(AuditLink(run_id="r0", number=i, kind="step", name=f"{i}"))
            await store.update_worker(f"w{i}", "idle" if i else "busy")
            last = await store.add_resources({"n": str(i)})
        for method, args in (
            (store.query_runs, ()),
            (store.query_steps, ("r0",)),
            (store.query_fingerprints, ("r0",)),
            (store.query_links, ("r0",)),
            (store.query_workers, ()),
            (store.query_resources, ()),
        ):
            everything = await method(*args)
            assert len(everything) == (15 if method == store.query_fingerprints else 5)
            assert await flat(pages(method, *args, size=2)) == everything
            assert await flat(pages(method, *args, size=5)) == everything
            if method != store.query_workers:  # whose cursor is a place in the alphabet
                with pytest.raises((NotFound, ValueError), match="after"):
                    await method(*args, after="no/such/place")
        with pytest.raises(NotFound, match="after"):
            await store.query_fingerprints("r0", after="1/p/0/ro-x")
        assert [w.worker_id for w in await store.query_workers(status="busy")] == ["w0"]
        with pytest.raises(ValueError, match="status"):
            await store.query_workers(status="asleep")
        page = await store.query_resources(2)
        assert page[0].resources_id == last.resources_id
        oldest = (await store.query_resources())[-1]
        await store.update_resources(oldest.resources_id, {"n": "changed"})
        rest = await store.query_resources(9, after=page[-1].resources_id)
        assert rest[-1].resources_id == oldest.resources_id and rest[-1].version == 2

    # -- numbers

    async def test_numbers_are_given_once(self, store: Store) -> None:
        lease, other = await leased(store), await leased(store)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        assert await store.get_next_span_sequence_id(*ids) == 1
        assert (await store.add_span(span(lease))).sequence_id == 2
        assert [await store.get_next_span_sequence_id(*ids, request_id="n") for _ in range(2)] == [3, 3]
        pair = other.rollout.rollout_id, other.attempt.attempt_id
        assert await store.get_many_span_sequence_ids([ids, pair, ids]) == [4, 1, 5]
        assert (await store.add_span(span(lease, sequence_id=99))).sequence_id == 6
        kept = await store.add_many_spans([span(lease, "late", sequence_id=3)], numbered=True)
        assert kept[0].sequence_id == 3
        assert [s.sequence_id for s in await store.query_spans(ids[0])] == [2, 3, 6]
        for number, error in ((7, ValueError), (0, ValueError), (2, Conflict), (3, Conflict)):
            with pytest.raises(error):
                await store.add_many_spans([span(lease, sequence_id=number)], numbered=True)
        with pytest.raises(Conflict):
            await store.add_many_spans(
                [span(lease, sequence_id=4), span(lease, sequence_id=4)], numbered=True
            )
        await finish(store, lease)
        with pytest.raises(AttemptEnded):
            await store.get_next_span_sequence_id(*ids)
        with pytest.raises(NotFound):
            await store.get_next_span_sequence_id(ids[0], "at-x")

    async def test_opentelemetry_spans_are_taken_as_they_are(self, store: Store) -> None:
        lease = await leased(store)
        ids = lease.rollout.rollout_id, lease.attempt.attempt_id
        number = await store.get_next_span_sequence_id(*ids)
        with TracerProvider().get_tracer("test").start_as_current_span("work") as live:
            live.set_attribute("k", ["a", "b"])
            live.add_event("happened", {"n": 1})
        assert isinstance(live, ReadableSpan)
        stored = await store.add_otel_span(*ids, live, number)
        again = await store.add_otel_span(*ids, live)
        assert (stored.sequence_id, again.sequence_id) == (number, number + 1)
        found = (await store.query_spans(ids[0], ids[1], span_id=stored.span_id))[0]
        assert isinstance(found, Span) and found == stored
        assert (found.name, found.attributes, found.events[0]["name"]) == (
            "work",
            {"k": ["a", "b"]},
            "happened",
        )
        assert found.trace_id == f"{live.get_span_context().trace_id:032x}"
