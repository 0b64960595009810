"""What of a conversation may be dropped: pinned turns, whole blocks, oldest first."""

import json
from pathlib import Path

import pytest
from agl_gateway.edits.over_length import Window, blocks, upper_bound
from contract.model_server import prompt_of
from hypothesis import given, strategies as st

HISTORIES = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parent / "histories").glob("*.json"))
}


def said(role, text="x", **more):
    return {"role": role, "content": text, **more}


def call(*ids):
    tools = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": tools}


@pytest.mark.parametrize("tools", [-1, True, "x", {"a": 1}, [3], [{"id": [1]}]])
def test_tool_calls_that_are_none_join_no_blocks(tools):
    chat = [said("user"), {**said("assistant"), "tool_calls": tools}, said("user")]
    assert blocks(chat) == [(0, 1), (1, 2), (2, 3)]


def result(call_id):
    return said("tool", "1", tool_call_id=call_id)


def no_orphans(messages):
    known = {c["id"] for m in messages for c in m.get("tool_calls") or ()}
    return all(m["tool_call_id"] in known for m in messages if m["role"] == "tool")


def no_unanswered(messages):
    answered = {m["tool_call_id"] for m in messages if m["role"] == "tool"}
    return all(c["id"] in answered for m in messages for c in m.get("tool_calls") or ())


@pytest.mark.parametrize("name", HISTORIES)
def test_histories_keep_their_pins_and_lose_the_oldest(name):
    messages = HISTORIES[name]["messages"]
    window = Window(messages)
    assert len(window) >= 4
    for n in range(len(window) + 1):
        left = window.without(n)
        assert left[:2] == messages[:2], "system and role card"
        assert left[-1] == messages[-1]
        assert [m for m in messages if m["role"] == "user"][-1] in left
        assert no_orphans(left) and no_unanswered(left)
        gone = [i for a, b in window.dropped(n) for i in range(a, b)]
        assert left == [m for i, m in enumerate(messages) if i not in gone]
    assert all(len(window.without(n)) > len(window.without(n + 1)) for n in range(len(window)))


def test_the_role_card_of_a_wolf_stays():
    history = HISTORIES["werewolf"]["messages"]
    window = Window(history)
    left = window.without(len(window))
    assert [m["role"] for m in left] == ["system", "user", "user"]
    assert "身份是狼人" in left[1]["content"] and "第5天" in left[-1]["content"]


def test_a_tool_agent_keeps_its_question_and_its_last_round():
    window = Window(HISTORIES["calc_x"]["messages"])
    left = window.without(len(window))
    assert [m["role"] for m in left] == ["system", "user", "user", "assistant", "tool"]
    assert left[-2]["tool_calls"][0]["function"]["arguments"] == '{"expression": "54 / 2"}'


def test_parallel_calls_and_late_results_are_one_block():
    messages = [
        said("user"), call("a", "b"), result("b"), result("a"), call("c"), said("user", "wait"), result("c"),
        said("assistant"),
    ]  # fmt: skip
    assert blocks(messages) == [(0, 1), (1, 4), (4, 7), (7, 8)]
    assert blocks([said("tool"), said("user"), said("tool")]) == [(0, 1), (1, 3)], "a result of nothing known"
    assert blocks([]) == []


def test_nothing_may_go_of_a_short_chat():
    assert len(Window([said("user")])) == 0
    assert len(Window([said("system"), said("user"), said("assistant")])) == 0
    assert len(Window([])) == 0


@st.composite
def chats(draw):
    """Any chat that a tool agent could have: every call has its results, sometimes late."""
    out = [said("system")] if draw(st.booleans()) else []
    number = 0
    for kind in draw(
        st.lists(st.sampled_from(["user", "assistant", "tools", "late", "system"]), max_size=12)
    ):
        if kind in ("tools", "late"):
            ids = [f"c{number + i}" for i in range(draw(st.integers(1, 3)))]
            number += len(ids)
            out.append(call(*ids))
            if kind == "late":
                out.append(said("user", "meanwhile"))
            out += [result(i) for i in draw(st.permutations(ids))]
        else:
            out.append(said(kind, str(len(out))))
    return out


@given(chats())
def test_no_cut_leaves_an_orphan(messages):
    window = Window(messages)
    cover = [i for block in blocks(messages) for i in range(*block)]
    assert cover == list(range(len(messages)))
    for n in range(len(window) + 1):
        left = window.without(n)
        assert no_orphans(left) and no_unanswered(left)
        assert left[-1:] == messages[-1:]


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "system"]), st.text(max_size=40)),
        min_size=1,
        max_size=6,
    ),
    st.booleans(),
)
def test_the_bound_is_one(turns, tools):
    messages = [said(role, text) for role, text in turns]
    tool = {
        "type": "function",
        "function": {"name": "算", "parameters": {"type": "object", "properties": {}}},
    }
    request = {"messages": messages} | ({"tools": [tool]} if tools else {})
    assert len(prompt_of(request)) <= upper_bound(request)


@pytest.mark.parametrize("name", HISTORIES)
def test_the_bound_holds_for_real_histories(name):
    history = HISTORIES[name]
    assert len(prompt_of(history)) <= upper_bound(history)
    assert upper_bound({"prompt": "文"}) >= 3
