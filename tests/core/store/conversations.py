"""Attempts for tests: what agents ask and engines answer, drawn at random, in all shapes that occur."""

from __future__ import annotations

from random import Random
from typing import Any

from agentlightning.types import Call

TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks around. " * 8}}]
OTHER_TOOLS = [{"type": "function", "function": {"name": "go", "description": "Goes there. " * 8}}]
ODD = {"big": 2**70, "lone": "\ud800", "nested": {"b": 1, "a": [1.0, 1, True, None]}}
"""Values that MessagePack cannot hold, and some whose order and types must not change."""


def conversation(random: Random, rollout_id: str = "r", attempt_id: str = "a") -> list[Call]:
    """The calls of one attempt, in order of arrival: conversations that grow, branch, are sampled several
    times, retokenised, stripped of reasoning, shortened, edited and repeated.
    """
    pasts: list[tuple[list[int], list[Any]]] = [([], []), ([7], [{"role": "system", "content": "Be brief."}])]
    calls: list[Call] = []
    for sequence in range(random.randint(1, 9)):
        ids, messages = pasts[-1] if random.random() < 0.7 else random.choice(pasts)
        ids = [*ids, *_ids(random, 0, 3)]
        messages = [*messages, *([_message(random, "user")] if random.random() < 0.9 else [])]
        request = _request(random, ids, messages)
        answers = [_answer(random) for _ in range(random.choice([1, 1, 1, 2, 3]))]
        made = [
            _call(random, rollout_id, attempt_id, sequence, n, ids, request, *one)
            for n, one in enumerate(answers)
        ]
        calls += made
        response, message = answers[random.randrange(len(answers))]
        pasts.append(_after(random, ids, messages, response, message))
    return calls


def _after(
    random: Random, ids: list[int], messages: list[Any], response: list[int], message: dict[str, Any]
) -> tuple[list[int], list[Any]]:
    """What the agent goes on from."""
    quoted: dict[str, Any] = message
    how = random.choice(["", "", "", "", "retokenised", "stripped", "shortened", "edited", "decorated"])
    if how == "retokenised":
        response = [*response[:-1], 3, 3]
    elif how == "stripped":
        response, quoted = response[len(response) // 2 :], {**message, "content": "short"}
    elif how == "shortened":
        messages, ids = messages[len(messages) // 2 :], ids[len(ids) // 2 :]
    elif how == "edited" and messages:
        messages = [{**messages[0], "content": "edited"}, *messages[1:]] if messages[0] else messages
    elif how == "decorated":
        quoted = {**message, "name": "bot"}
    return ids + response, [*messages, quoted]


def _request(random: Random, ids: list[int], messages: list[Any]) -> dict[str, Any] | None:
    kind = random.choice(["chat"] * 6 + ["text", "ids", "nothing", "odd"])
    if kind == "nothing":
        return None
    request: dict[str, Any] = {"model": "m", "temperature": random.choice([1, 1.0])}
    if kind == "text":
        return {**request, "prompt": "".join(str(m.get("content")) for m in messages)}
    if kind == "ids":
        return {**request, "prompt": list(ids)}
    request["messages"] = [*messages]
    if random.random() < 0.6:
        request["tools"] = random.choice([TOOLS, TOOLS, OTHER_TOOLS])
    if kind == "odd":
        request[random.choice(list(ODD))] = random.choice(list(ODD.values()))
    return request


def _call(
    random: Random, rollout: str, attempt: str, sequence: int, choice: int,
    ids: list[int], request: dict[str, Any] | None, response: list[int], message: dict[str, Any],
) -> Call:  # fmt: skip
    known = random.random() < 0.9
    text = request is not None and "prompt" in request
    return Call(
        call_id=f"{attempt}-{sequence}.{choice}",
        rollout_id=rollout,
        attempt_id=attempt,
        sequence=sequence,
        choice=choice,
        policy=random.choice(["p", "p", "p", "q"]),
        policy_version=random.choice([None, 3]),
        request=request,
        response=random.choice([None, {"text": message["content"]}]) if text else message,
        prompt_ids=ids if known else None,
        response_ids=response if known else None,
        logprobs=[-0.5 * i for i in range(len(response))] if known else None,
        policy_versions=[3 + i for i in range(len(response))] if known and random.random() < 0.3 else None,
        sampling={"temperature": random.choice([1.0, 1.0, 0.5])},
        tags={"agent": "a"},
    )


def _answer(random: Random) -> tuple[list[int], dict[str, Any]]:
    return _ids(random, 1, 3), _message(random, "assistant")


def _message(random: Random, role: str) -> dict[str, Any]:
    return {"role": role, "content": random.choice(["yes", "no", "ünd", ""])}


def _ids(random: Random, low: int, high: int) -> list[int]:
    return [random.randrange(4) for _ in range(random.randint(low, high))]
