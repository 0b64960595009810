"""Chats of stored rollouts, for fine-tuning: the rows that ``agl sft --data`` reads.

A rollout gives a row for each of its conversations: the messages of a call and its answer, unless a later
call goes on from there. Invariants: the model learns each recorded answer once, and nothing else; other
assistant messages, such as examples in a prompt, get ``"weight": 0``. Every rollout gives rows or is counted
with a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentlightning.credit.rollout_reward import rollout_reward
from agentlightning.types import Call, Record

Message = Mapping[str, Any]
Row = dict[str, Any]


def chosen(
    records: Iterable[Record], minimum: float | None, best: int | None, left_out: Counter[str]
) -> list[Record]:
    """Return the finished training rollouts with at least the reward ``minimum``; ``best``: so many of each
    group, those with the highest rewards (rejection sampling, RAFT, arXiv 2304.06767), of equal ones the
    earlier.
    """
    groups: dict[str, list[tuple[float, int, Record]]] = {}
    for place, record in enumerate(records):
        outcome = rollout_reward(record).value
        if record.rollout.mode not in (None, "train"):
            left_out["not-training"] += 1
        elif record.rollout.status != "succeeded":
            left_out[str(record.rollout.status)] += 1
        elif outcome is None and (minimum is not None or best is not None):
            left_out["no-reward"] += 1
        elif minimum is not None and outcome is not None and outcome < minimum:
            left_out["below-minimum"] += 1
        else:
            group = record.rollout.group_id or record.rollout.rollout_id
            groups.setdefault(group, []).append((-(outcome or 0.0), place, record))
    found: list[tuple[int, Record]] = []
    for members in groups.values():
        kept = sorted(members, key=lambda one: one[:2])[:best]
        left_out["not-best"] += len(members) - len(kept)
        found += [(place, record) for _, place, record in kept]
    left_out += Counter()  # drop zeros
    return [record for _, record in sorted(found, key=lambda one: one[0])]


def chats_of(record: Record, agent: str | None, left_out: Counter[str]) -> Iterator[Row]:
    """Yield the rows of a rollout. ``agent``: only its calls are learned. ``left_out`` counts calls by
    reason.
    """
    calls = [call for call in record.calls if _usable(call, left_out)]
    answers = {_key([*_asked(call), call.response]): call for call in calls}
    learned: set[str] = set()
    ends = [call for call in calls if not _goes_on(call, calls)]
    for call in ends:
        row = [*_asked(call), call.response or {}]
        messages = [_weighed(row, place, answers, learned, agent) for place in range(len(row))]
        if not any(one.get("role") == "assistant" and one.get("weight") != 0 for one in messages):
            left_out["calls/other-agent"] += 1
            continue
        tools = (call.request or {}).get("tools")
        yield {"messages": messages, **({"tools": tools} if tools else {})}


def _usable(call: Call, left_out: Counter[str]) -> bool:
    if call.status != "ok" or call.response is None:
        left_out[f"calls/{call.status if call.status != 'ok' else 'no-answer'}"] += 1
        return False
    if not isinstance((call.request or {}).get("messages"), list) or "role" not in call.response:
        left_out["calls/no-messages"] += 1
        return False
    return True


def _asked(call: Call) -> list[Message]:
    messages: list[Message] = (call.request or {})["messages"]
    return messages


def _plain(message: Message) -> Any:
    """Return what makes two messages the same: frameworks add empty fields to what they send again."""
    return tuple(
        (name, repr(message.get(name) or None)) for name in ("role", "content", "tool_calls", "tool_call_id")
    )


def _key(messages: Sequence[Message | None]) -> Any:
    return tuple(_plain(message or {}) for message in messages)


def _goes_on(call: Call, calls: Sequence[Call]) -> bool:
    """Return whether a later call begins with this one's messages and answer."""
    key = _key([*_asked(call), call.response])
    return any(
        len(_asked(o)) >= len(key) and _key(_asked(o)[: len(key)]) == key for o in calls if o is not call
    )


def _weighed(
    row: Sequence[Message], place: int, answers: Mapping[Any, Call], learned: set[str], agent: str | None
) -> dict[str, Any]:
    message = {name: value for name, value in row[place].items() if value is not None or name == "content"}
    if message.get("role") != "assistant":
        return message
    call = answers.get(_key(row[: place + 1]))
    mine = call is not None and call.call_id not in learned and agent in (None, call.tags.get("agent"))
    if not mine or call is None:
        return {**message, "weight": 0}
    learned.add(call.call_id)
    return message
