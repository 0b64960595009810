"""The tree of an attempt: every span once, under its parent."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from contract.runs import RUN, add_rollout, make_run, plugins
from hypothesis import given, strategies as st
from rich.console import Console

from agentlightning import semconv
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, RolloutConfig, Span
from agl_audit.attempt_tree import SpanNode, attempt_trees, build_tree
from agl_audit.commands.trace import tree
from agl_audit.targets import open_target


def span(span_id: str, parent: str | None = None, start: float = 0.0, **fields: Any) -> Span:
    return Span(**{
        "rollout_id": "r", "attempt_id": "a", "name": span_id, "span_id": span_id, "parent_id": parent,
        "start_time": start, "end_time": start + 0.25, **fields,
    })  # fmt: skip


def flat(nodes: list[SpanNode]) -> list[str]:
    return [name for node in nodes for name in (node.span_id, *flat(node.children))]


async def test_an_attempt(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    async with open_target("ro-0-0", str(folder), plugins=plugins()) as (run, target):
        (one,) = await attempt_trees(run, target)
    agent, reward = one.roots
    assert (one.status, one.spans, one.sequence) == ("succeeded", 5, 1)
    assert (agent.kind, agent.name, [c.kind for c in agent.children]) == (
        "agent",
        "solver",
        ["call", "tool", "call"],
    )
    asked, tool, answered = agent.children
    assert asked.facts["answer"] == 'calculate({"e": "2+3"})' and asked.facts["verdict"] == "exact"
    assert (asked.facts["tokens_in"], asked.facts["tokens_out"], asked.facts["version"]) == (2, 2, 0)
    assert tool.facts == {"arguments": '{"e": "2+3"}', "result": "5"}
    assert answered.facts["answer"] == "5" and answered.milliseconds == 500.0
    assert (reward.kind, reward.facts) == ("reward", {"value": 1.0, "of": "rollout", "final": True})


async def test_it_says_what_the_attempt_was_given_and_which_reward_was_returned(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.sqlite")
    await store.add_run(RUN, {})
    given_it = await store.add_resources({"prompt": "A"})
    lease = await store.start_attempt((await store.enqueue_rollout(1, run_id=RUN)).rollout_id)
    await store.update_resources(given_it.resources_id, {"prompt": "B"})
    ids = {"rollout_id": lease.rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}
    emitted, returned = (
        Span(**ids, name=semconv.REWARD_SPAN, attributes={semconv.REWARD_VALUE: value})
        for value in (0.0, 1.0)
    )
    await store.update_attempt(*ids.values(), AttemptStatus.SUCCEEDED, spans=[emitted], returned=[returned])
    await store.close()
    async with open_target(ids["rollout_id"], str(tmp_path), plugins=plugins()) as (run, target):
        (one,) = await attempt_trees(run, target)
    assert one.resources == f"{given_it.resources_id}@1"
    assert [(n.facts["value"], n.facts.get("returned")) for n in one.roots] == [(0.0, None), (1.0, True)]
    console = Console(file=StringIO(), width=200)
    console.print(tree(one))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"given {given_it.resources_id}@1" in shown and "of rollout  returned" in shown


async def test_all_attempts_and_one_by_its_id(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store = SQLiteStore(folder / "store.sqlite")
    twice = RolloutConfig(max_attempts=2, retry_condition=[AttemptStatus.TIMEOUT])
    await add_rollout(store, RUN, "ro-twice", 0.0, finish=False, config=twice)
    (first,) = await store.query_attempts("ro-twice")
    await store.update_attempt("ro-twice", first.attempt_id, AttemptStatus.TIMEOUT, reason="timeout: 3 s")
    second = (await store.start_attempt("ro-twice")).attempt
    await store.close()
    async with open_target("ro-twice", str(folder), plugins=plugins()) as (run, target):
        assert [t.attempt for t in await attempt_trees(run, target)] == [second.attempt_id]
        both = await attempt_trees(run, target, every=True)
    assert [t.attempt for t in both] == [first.attempt_id, second.attempt_id]
    assert both[0].reason == "timeout: 3 s" and both[1].roots == []
    async with open_target(first.attempt_id, str(folder), plugins=plugins()) as (run, target):
        assert [t.attempt for t in await attempt_trees(run, target)] == [first.attempt_id]


def test_errors_are_found_wherever_they_are() -> None:
    raised = {semconv.EXCEPTION_TYPE: "ValueError", semconv.EXCEPTION_MESSAGE: "no"}
    nodes = build_tree([
        span("a", status="error", status_message="boom"),
        span("b", status="error", start=1),
        span("c", events=[{"name": "exception", "attributes": raised}], start=2),
        span("d", name=semconv.EXCEPTION_SPAN, attributes=raised, start=3),
        span("e", start=4),
    ])  # fmt: skip
    assert [n.error for n in nodes] == ["boom", "error", "ValueError: no", "ValueError: no", None]
    assert nodes[3].kind == "exception" and nodes[3].name == "ValueError"


def test_order_is_by_start_and_strange_parents_are_roots() -> None:
    nodes = build_tree(
        [span("late", "top", 2), span("early", "top", 1), span("top"), span("lost", "nobody", 3)]
    )
    assert flat(nodes) == ["top", "early", "late", "lost"]
    assert sorted(flat(build_tree([span("x", "y"), span("y", "x"), span("z", "y"), span("s", "s")]))) == list(
        "sxyz"
    )


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from([None, *"abcdefg"])), max_size=9))
def test_every_span_is_there_exactly_once(pairs: list[tuple[str, str | None]]) -> None:
    spans = [span(i, parent, float(n)) for n, (i, parent) in enumerate(pairs)]
    assert sorted(flat(build_tree(spans))) == sorted(i for i, _ in pairs)


async def test_an_attempt_of_more_spans_than_a_page_is_shown_whole(tmp_path: Path) -> None:
    folder = await make_run(tmp_path)
    store = SQLiteStore(folder / "store.sqlite")
    lease = await store.start_rollout({"q": 1})
    ids = {"rollout_id": lease.rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}
    many = [Span(**ids, name="note", span_id=f"{number:016x}") for number in range(10_050)]
    await store.add_many_spans(many)
    await store.close()
    async with open_target(ids["rollout_id"], str(folder), plugins=plugins()) as (run, target):
        (one,) = await attempt_trees(run, target)
    assert one.spans == len(many) and len(flat(one.roots)) == len(many)
