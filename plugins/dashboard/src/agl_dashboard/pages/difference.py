"""Two rollouts beside each other: where their calls part, and what each was worth."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NamedTuple

from aiohttp import web

from agentlightning.types import Call, Record
from agl_audit.explanation.explain import rewards
from agl_dashboard.data.places import NoSuchPlace
from agl_dashboard.data.query import BadQuery
from agl_dashboard.server.context import context_of, crumbs
from agl_dashboard.server.render import pretty, render

LONGEST = 8_000
"""Characters of an answer that are compared."""


class Piece(NamedTuple):
    """A part of a text."""

    text: str
    kind: str
    """``same, only``."""


class Pair(NamedTuple):
    """The calls of two rollouts at one place of their sequences; ``None``: one has no call there."""

    left: Call | None
    right: Call | None
    left_text: list[Piece]
    right_text: list[Piece]
    same: bool
    same_prompt: bool


async def page(request: web.Request) -> web.Response:
    """The comparison."""
    context, place = context_of(request), request.match_info["place"]
    store = await context.places.store(place)
    ids = [request.query.get(name, "") for name in ("a", "b")]
    if not all(ids):
        raise BadQuery("give two rollouts: ?a=…&b=…")
    known = {r.rollout_id for r in await store.query_rollouts(rollout_ids=ids, limit=2)}
    for one in ids:
        if one not in known:
            raise NoSuchPlace(f"the store has no rollout {one!r}")
    left, right = [(await store.records([one]))[0] for one in ids]
    run_id = left.rollout.run_id or ""
    values = {
        "title": "Two rollouts",
        "trail": crumbs(place, run_id),
        "place": place,
        "sides": [_side(left), _side(right)],
        "pairs": pairs(left.calls, right.calls),
        "inputs": words(pretty(left.rollout.input), pretty(right.rollout.input)),
        "same_input": left.rollout.input == right.rollout.input,
    }
    return render(request, "difference.html", values)


def _side(record: Record) -> dict[str, Any]:
    return {"rollout": record.rollout, "rewards": rewards(record), "calls": len(record.calls)}


def pairs(left: Sequence[Call], right: Sequence[Call]) -> list[Pair]:
    """Return the calls of both, place by place."""
    found = []
    for n in range(max(len(left), len(right))):
        a = left[n] if n < len(left) else None
        b = right[n] if n < len(right) else None
        first, second = words(said(a), said(b))
        prompts = a is not None and b is not None and _messages(a) == _messages(b)
        same = a is not None and b is not None and said(a) == said(b)
        found.append(Pair(a, b, first, second, same, prompts))
    return found


def said(call: Call | None) -> str:
    """Return what a call answered: text and tool calls."""
    if call is None:
        return ""
    message = call.response or {}
    text = str(message.get("content") or message.get("text") or "")
    for tool in message.get("tool_calls") or ():
        function = (tool.get("function") or tool) if isinstance(tool, dict) else {}
        text += f"\n{function.get('name')}({function.get('arguments', '')})"
    return (text or (call.error or "")).strip()[:LONGEST]


def words(left: str, right: str) -> tuple[list[Piece], list[Piece]]:
    """Return both texts in pieces that they share or have alone, word by word."""
    a, b = _split(left), _split(right)
    first: list[Piece] = []
    second: list[Piece] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        mark = "same" if kind == "equal" else "only"
        first += [Piece("".join(a[i:j]), mark)] if j > i else []
        second += [Piece("".join(b[k:m]), mark)] if m > k else []
    return first, second


def _split(text: str) -> list[str]:
    out: list[str] = []
    for word in text[:LONGEST].replace("\n", " \n").split(" "):
        out += [word, " "]
    return out[:-1]


def _messages(call: Call) -> object:
    return (call.request or {}).get("messages")
