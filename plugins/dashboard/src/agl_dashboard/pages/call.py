"""A call: the chat that was sent, beside the tokens that the engine read and drew.

Tokens are shown a window at a time: a call of 100,000 tokens is as quick as one of a hundred.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiohttp import web

from agentlightning.credit.verdicts import Verdict, verdicts
from agentlightning.types import Call, Rollout
from agl_audit.explanation.advantage import REASONS, find_segment
from agl_audit.explanation.recomputed_step import recompute_step
from agl_audit.run import CannotRecompute, OpenRun
from agl_dashboard.data.places import NoSuchPlace
from agl_dashboard.data.query import BadQuery
from agl_dashboard.data.tokens import TokenText, vocabulary
from agl_dashboard.pages.rollout import common
from agl_dashboard.server.context import context_of
from agl_dashboard.server.render import path, render

WINDOW: Final = 1_500
"""Tokens of one window."""
LONG: Final = 20_000
"""Characters of one message that are shown unless all are asked for."""
MESSAGES: Final = 200
"""Messages that are shown: the last ones."""
_GAP: Final = 2.0
"""The gap to a teacher, in nats, from which on the colour stays the same."""
_LOGPROB_STEPS: Final = (0.99, 0.9, 0.7, 0.4, 0.15, 0.05, 0.01)
"""Probabilities at which the colour changes."""


class ShownToken(NamedTuple):
    """A token as it is shown."""

    place: int
    token: int
    text: str
    special: bool
    classes: str
    """Classes of its colours: ``l0``–``l7`` by probability, ``a-4``–``a4`` by advantage, ``g-4``–``g4`` by
    the teacher's gap, ``r-4``–``r4`` by ratio, ``m0``/``m1`` by mask."""
    title: str


class Window(NamedTuple):
    """Some of the tokens of a prompt or an answer."""

    name: str
    tokens: list[ShownToken]
    start: int
    of: int
    before: int | None
    after: int | None
    size: int = WINDOW


class CallCredit(NamedTuple):
    """What the tokens of a call were trained with, as far as anything was."""

    advantages: Sequence[float] = ()
    mask: Sequence[int] = ()
    verdict: Verdict | None = None
    left_out: str = ""
    note: str = ""
    row: str = ""
    teacher: Sequence[float | None] = ()
    """Logprobs of the teacher of a run that distils; empty: there was none."""


async def page(request: web.Request) -> web.Response:
    """One call."""
    context, place = context_of(request), request.match_info["place"]
    run, rollout = await context.rollout(place, request.match_info["rollout"])
    call = await find_call(run, rollout, request.match_info["call"])
    found = await context.compute(place, run.run_id, lambda one: call_credit(one, rollout, call.call_id))
    ratios: Sequence[float | None] = ()
    ratio_note = ""
    if request.query.get("ratio"):
        ratios, ratio_note = await context.compute(
            place, run.run_id, lambda one: token_ratios(one, rollout, call.call_id)
        )
    words = vocabulary(run, call.policy)
    values = {
        **common(request, place, run, rollout, ""),
        "title": call.call_id,
        "call": call,
        "credit": found,
        "answer": window(call.response_ids, "response", request, words, call, found, ratios),
        "prompt": window(call.prompt_ids, "prompt", request, words, call, None, ()),
        "messages": messages(call, bool(request.query.get("whole"))),
        "more_messages": max(0, len(_messages(call)) - MESSAGES),
        "note": words.note,
        "ratios": bool(ratios),
        "ratio_note": ratio_note,
        "facts": facts(call),
        "raw": json.dumps(call.request, ensure_ascii=False, indent=2, default=str)[:LONG],
        "base": path("s", place, "rollouts", rollout.rollout_id, "calls", call.call_id),
    }
    values["trail"] = [
        *values["trail"],
        (rollout.rollout_id, path("s", place, "rollouts", rollout.rollout_id)),
    ]
    return render(request, "call.html", values)


async def find_call(run: OpenRun, rollout: Rollout, call_id: str) -> Call:
    """Return a call of a rollout. Raise :class:`.NoSuchPlace`."""
    calls = await run.store.query_calls(rollout.rollout_id, None)
    for call in calls:
        if call.call_id == call_id:
            return call
    raise NoSuchPlace(f"rollout {rollout.rollout_id} has no call {call_id!r}")


async def call_credit(run: OpenRun, rollout: Rollout, call_id: str) -> CallCredit:
    """Return advantage and mask of each response token, from the step credited again."""
    step = await recompute_step(run, rollout)
    verdict = verdicts(step.record).get(call_id)
    found = find_segment(step.batch.rows, call_id) if step.batch else None
    if found is None:
        reason = step.out.get(call_id, "")
        return CallCredit(verdict=verdict, left_out=reason, note=REASONS.get(reason, reason) or step.note)
    row, segment = found
    part = slice(segment.start, segment.end)
    mask, said = list(row.mask[part]), row.metadata.get("tokens", {}).get("teacher")
    teacher = () if said is None else [one if on else None for one, on in zip(said[part], mask, strict=True)]
    advantages = list(row.advantages[part])
    return CallCredit(advantages, mask, verdict, note=step.note, row=row.row_id, teacher=teacher)


async def token_ratios(run: OpenRun, rollout: Rollout, call_id: str) -> tuple[list[float | None], str]:
    """Return the log-ratio of each response token, of the newest policy to the one that drew it; or why there
    is none.
    """
    step = await recompute_step(run, rollout)
    found = find_segment(step.batch.rows, call_id) if step.batch else None
    if found is None:
        return [], "no ratio: the call is in no row"
    row, segment = found
    folders = run.policies(row.policy)
    if not folders:
        return [], "no ratio: the run's folder holds no policy"
    try:
        (now,) = run.inspector(folders[0][0]).logprobs([row])
    except CannotRecompute as error:
        return [], f"no ratio: {error}"
    part = range(segment.start, segment.end)
    version = min(row.versions[t] for t in part)
    said = f"ratio of {folders[0][0]} to the policy that drew the tokens (version {version})"
    return [now[t] - row.logprobs[t] if row.mask[t] else None for t in part], said


def window(
    ids: Sequence[int] | None,
    name: str,
    request: web.Request,
    words: Any,
    call: Call,
    credit: CallCredit | None,
    ratios: Sequence[float | None],
) -> Window | None:
    """Return the tokens from the place that the address asks for; ``None``: the engine gave no ids."""
    if ids is None:
        return None
    start = _start(request.query.get(name, "0"), name, len(ids))
    end = min(len(ids), start + WINDOW)
    logprobs = call.logprobs if credit is not None else None
    tokens = []
    for index, (token, text) in enumerate(
        zip(ids[start:end], words.texts(list(ids[start:end])), strict=True), start
    ):
        facts_of = _token_facts(index, logprobs, credit, ratios)
        tokens.append(_shown(index, int(token), text, facts_of))
    return Window(
        name,
        tokens,
        start,
        len(ids),
        max(0, start - WINDOW) if start else None,
        end if end < len(ids) else None,
    )


def _start(text: str, name: str, size: int) -> int:
    if not (text.isascii() and text.isdigit()) or int(text[:12]) > max(size - 1, 0):
        raise BadQuery(f"{name}={text[:40]!r}: tokens are numbered from 0 to {max(size - 1, 0)}")
    return int(text)


class _Facts(NamedTuple):
    logprob: float | None = None
    advantage: float | None = None
    trained: bool | None = None
    ratio: float | None = None
    teacher: float | None = None


def _token_facts(
    index: int, logprobs: Sequence[float] | None, credit: CallCredit | None, ratios: Sequence[float | None]
) -> _Facts:
    if credit is None:
        return _Facts()
    known = index < len(credit.mask)
    return _Facts(
        logprobs[index] if logprobs is not None and index < len(logprobs) else None,
        credit.advantages[index] if known else None,
        bool(credit.mask[index]) if known else False,
        ratios[index] if index < len(ratios) else None,
        credit.teacher[index] if index < len(credit.teacher) else None,
    )


def _shown(index: int, token: int, text: TokenText, one: _Facts) -> ShownToken:
    classes, said = [], [f"token {index}, id {token}, {text.text!r}"]
    if text.special:
        classes.append("sp")
    if one.logprob is not None:
        probability = math.exp(min(0.0, one.logprob))
        classes.append(f"l{sum(probability < step for step in _LOGPROB_STEPS)}")
        said.append(f"logprob {one.logprob:.4f}, probability {probability:.4f}")
    if one.trained is not None:
        classes.append(f"m{int(one.trained)}")
        if not one.trained:
            said.append("not trained")
    if one.advantage is not None and one.trained:
        classes.append(f"a{_step(one.advantage / 2)}")
        said.append(f"advantage {one.advantage:+.4f}")
    if one.teacher is not None and one.logprob is not None:
        gap = one.logprob - one.teacher
        classes.append(f"g{_step(gap / _GAP)}")
        said.append(f"teacher's logprob {one.teacher:.4f}, gap {gap:+.4f}")
    if one.ratio is not None:
        classes.append(f"r{_step(one.ratio / math.log(2))}")
        said.append(f"ratio {math.exp(min(one.ratio, 700)):.4f}")
    return ShownToken(index, token, text.text, text.special, " ".join(classes), "\n".join(said))


def _step(share: float) -> str:
    """Return which of nine colours a value between -1 and 1 has; what lies beyond has the last ones."""
    if math.isnan(share):
        return "0"
    near = 0 if share == 0 else max(1, min(4, math.ceil(abs(share) * 4)))
    return f"-{near}" if share < 0 else str(near)


# ------------------------------------------------------------------------------------------------- the chat
class ShownMessage(NamedTuple):
    """A message of the request, or the answer."""

    role: str
    name: str
    text: str
    hidden: int
    """Characters that are not shown."""
    tools: list[tuple[str, str]]
    """Name and arguments of the tool calls."""


def messages(call: Call, whole: bool) -> list[ShownMessage]:
    """Return the messages of a call and its answer, for the chat."""
    found = [_message(one, whole) for one in _messages(call)[-MESSAGES:]]
    reply = call.response or {}
    if reply:
        found.append(_message({"role": "answer", **{k: v for k, v in reply.items() if k != "role"}}, whole))
    return found


def _messages(call: Call) -> list[Mapping[str, Any]]:
    request = call.request or {}
    given = request.get("messages")
    if isinstance(given, list):
        return [one if isinstance(one, dict) else {"role": "?", "content": one} for one in given]
    return [] if request.get("prompt") is None else [{"role": "prompt", "content": request["prompt"]}]


def _message(one: Mapping[str, Any], whole: bool) -> ShownMessage:
    content = one.get("content", one.get("text"))
    if isinstance(content, list):
        parts = [
            str(p.get("text") or f"[{p.get('type', 'part')}]") if isinstance(p, dict) else str(p)
            for p in content
        ]
        content = "\n".join(parts)
    elif content is not None and not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False, indent=2, default=str)
    said = content or ""
    kept = said if whole else said[:LONG]
    tools = []
    asked = one.get("tool_calls")
    for tool in asked if isinstance(asked, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        function = function if isinstance(function, dict) else tool if isinstance(tool, dict) else {}
        tools.append((str(function.get("name", "?")), str(function.get("arguments", ""))[:LONG]))
    return ShownMessage(
        str(one.get("role", "?")), str(one.get("name") or ""), kept, len(said) - len(kept), tools
    )


def facts(call: Call) -> list[tuple[str, Any]]:
    """Return what is known of a call, as names and values."""
    found = {
        "agent": call.tags.get("agent"),
        **{name: value for name, value in call.tags.items() if name != "agent"},
        "model": call.model,
        "policy": call.policy,
        "version": call.policy_version,
        "attempt": call.attempt_id,
        "request": f"{call.sequence}, choice {call.choice}"
        + (f", repetition {call.retry}" if call.retry else ""),
        "api": call.api,
        "status": call.status,
        "error": call.error,
        "finish": call.finish_reason,
        "masked": call.masked,
        "sampling": call.sampling or None,
        "asked for": call.asked or None,
        "edited": call.edited or None,
        "logprobs are": call.logprobs_mode,
        "grammar": f"{call.grammar.library} {call.grammar.version}" if call.grammar else None,
        "guided choice": f"{len(call.allowed)} answers" if call.allowed else None,
    }
    return [(name, value) for name, value in found.items() if value not in (None, "")]
