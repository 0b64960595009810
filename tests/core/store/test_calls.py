"""A call is stored as what is new in it, and read as it was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from core.credit import whole_forest
from core.credit.builders import PATIENT
from core.store.conversations import conversation
from hypothesis import given, strategies as st

from agentlightning.credit import build_forest
from agentlightning.store import codec
from agentlightning.store.base import Conflict, StoreError
from agentlightning.store.calls import CALL_FIELDS, CallIndex, StoredCall, whole_calls
from agentlightning.store.codec import CallBody
from agentlightning.store.sqlite.store import SQLiteStore
from agentlightning.types import Call

RANDOM = st.randoms(use_true_random=False)


def through_a_file(calls: list[Call], earlier: CallIndex | None = None) -> list[StoredCall]:
    """The calls as they come from a file."""
    known = earlier or CallIndex()
    blobs = [codec.pack(known.delta(call)) for call in calls]
    return [
        StoredCall({name: getattr(call, name) for name in CALL_FIELDS}, codec.unpack(blob, CallBody))
        for call, blob in zip(calls, blobs, strict=True)
    ]


def same(found: list[Call], recorded: list[Call]) -> None:
    """Byte for byte, the order of keys and the types of numbers included."""
    assert found == recorded
    assert [json.dumps(c.request) for c in found] == [json.dumps(c.request) for c in recorded]
    assert [json.dumps(c.response) for c in found] == [json.dumps(c.response) for c in recorded]


@PATIENT
@given(RANDOM)
def test_calls_are_read_as_they_were_recorded(random: Random) -> None:
    calls = conversation(random)
    before = [json.dumps(c.model_dump()) for c in calls]
    same(whole_calls(through_a_file(calls)), calls)
    assert [json.dumps(c.model_dump()) for c in calls] == before, "storing changes no call"


@PATIENT
@given(RANDOM)
def test_a_call_that_was_read_can_be_stored_and_built_on(random: Random) -> None:
    """As after a restart: what is known of an attempt comes from its file."""
    calls = conversation(random)
    cut = random.randint(0, len(calls))
    first = through_a_file(calls[:cut])
    again = CallIndex()
    for call in whole_calls(first):
        again.delta(call)
    same(whole_calls([*first, *through_a_file(calls[cut:], again)]), calls)


@PATIENT
@given(RANDOM)
def test_an_index_that_forgets_changes_no_call(random: Random) -> None:
    calls = conversation(random)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentlightning.store.calls._MOST", 3)
        same(whole_calls(through_a_file(calls)), calls)


def test_a_long_conversation_goes_on_as_deltas_where_the_index_forgets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agentlightning.store.calls._MOST", 6)
    calls = talk(40, tools=[{"name": "look", "description": "looks around " * 9}])
    index = CallIndex()
    stored = through_a_file(calls, index)
    same(whole_calls(stored), calls)
    assert [s.body.ids_parent for s in stored] == [None, *(f"a-{n}.0" for n in range(39))]
    assert [s.body.messages_parent for s in stored] == [None, *(f"a-{n}.0" for n in range(39))]
    assert len(index._ids._known) <= 6 and len(index._ids._lengths) <= 6


async def test_a_very_long_attempt_is_not_read_again_for_its_index(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentlightning.store.sql.trace._MOST_ARRIVALS", 3)
    owner = await opened(sqlite)
    calls = owned(talk(8), owner)
    await sqlite.add_calls(calls[:5])
    sqlite.cache.clear()
    await sqlite.add_calls(calls[5:])
    same(await sqlite.query_calls(owner[0]), calls)
    rows = sqlite.db.connection.execute("SELECT data FROM calls ORDER BY seq")
    parents = [codec.unpack(blob, CallBody).ids_parent for (blob,) in rows]
    assert parents[5:] == [None, "a-5.0", "a-6.0"], (
        "one call is stored whole, and those behind it build on it"
    )


def paths(calls: list[Call]) -> list[tuple[list[str], list[str]]]:
    found = build_forest(calls).paths
    return [([c.call_id for c in path.shared], [c.call_id for c in path.own]) for path in found]


@PATIENT
@given(RANDOM)
def test_the_forest_is_the_one_of_the_whole_prompts(random: Random) -> None:
    calls = [c for c in conversation(random) if c.prompt_ids is not None]
    found = whole_calls(through_a_file(calls))
    kept = [call for call in found if random.random() < 0.8]
    for some in (calls, found, kept, random.sample(kept, len(kept))):
        paths = [
            ([c.call_id for c in p.shared], [c.call_id for c in p.own]) for p in build_forest(some).paths
        ]
        assert paths == whole_forest.paths(some)


def talk(turns: int, attempt_id: str = "a", **request: Any) -> list[Call]:
    """One agent that goes on and on."""
    ids: list[int] = []
    messages: list[dict[str, Any]] = []
    calls = []
    random = Random(1)
    for turn in range(turns):
        ids = [*ids, *(random.randrange(100_000) for _ in range(50))]
        messages = [*messages, {"role": "user", "content": "".join(random.choices("abcdefgh", k=200))}]
        out = [random.randrange(100_000) for _ in range(20)]
        answer = {"role": "assistant", "content": "".join(random.choices("abcdefgh", k=80))}
        calls.append(
            Call(
                call_id=f"{attempt_id}-{turn}.0",
                rollout_id="r",
                attempt_id=attempt_id,
                sequence=turn,
                prompt_ids=ids,
                response_ids=out,
                logprobs=[-0.5] * 20,
                response=answer,
                request={"messages": messages, **request},
            )
        )
        ids, messages = ids + out, [*messages, answer]
    return calls


def test_what_is_stored_grows_with_what_is_new() -> None:
    tools = [{"name": f"tool{i}", "description": "does something " * 20} for i in range(20)]
    sizes = [len(codec.pack(s.body)) for s in through_a_file(talk(60, tools=tools))]
    assert max(sizes[1:]) < 1.1 * min(sizes[1:]) < sizes[0]
    bodies = [s.body for s in through_a_file(talk(3, tools=tools))]
    assert [(b.ids_parent, b.ids_shared, b.messages_parent, b.messages_shared) for b in bodies] == [
        (None, 0, None, 0),
        ("a-0.0", 70, "a-0.0", 2),
        ("a-1.0", 140, "a-1.0", 4),
    ]
    assert [b.same_values for b in bodies] == [{}, {"tools": "a-0.0"}, {"tools": "a-0.0"}]


def test_prompts_that_were_read_share_their_memory() -> None:
    found = whole_calls(through_a_file(talk(5)))
    data = {id(call.prompt_ids.view().obj) for call in found if call.prompt_ids is not None}
    assert len(data) == 1
    first, second = (call.request["messages"] for call in found[:2] if call.request)
    assert second[0] is first[0] and second[1] is found[0].response


def test_a_reasoning_model_shares_the_prompt_when_its_answer_is_stripped() -> None:
    first, second = talk(2)
    assert first.prompt_ids is not None
    second.prompt_ids = type(first.prompt_ids)([*first.prompt_ids, 1, 2, 3])
    bodies = [s.body for s in through_a_file([first, second])]
    assert (bodies[1].ids_parent, bodies[1].ids_shared) == ("a-0.0", 50) and bodies[1].messages_shared == 2


def test_digests_that_agree_by_their_last_bytes_only_share_nothing() -> None:
    calls = talk(1) + [c for n in range(12) for c in talk(1, f"b{n}")]
    for n, call in enumerate(calls):
        assert call.prompt_ids is not None
        call.prompt_ids = type(call.prompt_ids)([n, *call.prompt_ids[1:]])
    same(whole_calls(through_a_file(calls)), calls)
    assert all(s.body.ids_parent is None for s in through_a_file(calls))


async def opened(store: SQLiteStore) -> tuple[str, str]:
    lease = await store.start_rollout({"q": 1}, worker_id="w")
    return lease.rollout.rollout_id, lease.attempt.attempt_id


def owned(calls: list[Call], owner: tuple[str, str]) -> list[Call]:
    for call in calls:
        call.rollout_id, call.attempt_id = owner
    return calls


async def test_a_file_that_is_opened_again_goes_on_where_it_was(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "s.sqlite")
    owner = await opened(store)
    calls = owned(talk(6), owner)
    await store.add_calls(calls[:3])
    await store.close()
    store = SQLiteStore(tmp_path / "s.sqlite")
    await store.add_calls(calls[3:5])
    store.cache.clear()
    await store.add_calls(calls[5:])
    same(await store.query_calls(owner[0]), calls)
    (record,) = await store.records([owner[0]])
    same(record.calls, calls)
    bodies = [
        codec.unpack(blob, CallBody).ids_parent
        for (blob,) in store.db.connection.execute("SELECT data FROM calls ORDER BY seq")
    ]
    assert bodies == [None, *(f"a-{n}.0" for n in range(5))]
    await store.close()


async def test_a_page_is_whole_wherever_it_begins(sqlite: SQLiteStore) -> None:
    owner = await opened(sqlite)
    calls = owned(talk(7), owner)
    await sqlite.add_calls(calls)
    found: list[Call] = []
    while page := await sqlite.query_calls(owner[0], limit=2, after=found[-1].call_id if found else None):
        found += page
    same(found, calls)


async def test_the_same_call_again_is_done_and_another_is_refused(sqlite: SQLiteStore) -> None:
    owner = await opened(sqlite)
    calls = owned(talk(3), owner)
    await sqlite.add_calls(calls)
    await sqlite.add_calls(calls[1:])
    assert calls[2].prompt_ids is not None
    calls[2].prompt_ids = type(calls[2].prompt_ids)([9, *calls[2].prompt_ids[1:]])
    with pytest.raises(Conflict, match="other content"):
        await sqlite.add_calls(calls[2:])


async def test_a_write_that_failed_is_built_on_by_nobody(sqlite: SQLiteStore) -> None:
    owner = await opened(sqlite)
    calls = owned(talk(3), owner)
    calls[1].tags = {"agent": object()}  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="object"):
        await sqlite.add_calls(calls[:2])
    calls[1].tags = {}
    await sqlite.add_calls(calls[1:])
    same(await sqlite.query_calls(owner[0]), calls[1:])


async def test_a_parent_that_is_gone_is_named(sqlite: SQLiteStore) -> None:
    owner = await opened(sqlite)
    await sqlite.add_calls(owned(talk(3), owner))
    sqlite.db.connection.execute("DELETE FROM calls WHERE call_id = 'a-1.0'")
    with pytest.raises(StoreError, match=r"a-2\.0 .* builds on call a-1\.0, which is not in the store"):
        await sqlite.query_calls(owner[0])
