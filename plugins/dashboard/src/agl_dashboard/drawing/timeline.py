"""An attempt as a timeline: a lane for each agent, on it what it did and when.

Invariant: every span of the attempt is drawn once or counted as without a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from agentlightning.types import Call, Span
from agl_audit.attempt_tree import SpanNode
from agl_dashboard.drawing.chart import Tick, label

WIDTH: Final = 1000.0
LEFT: Final = 150.0
RIGHT: Final = 16.0
LANE: Final = 34.0
BAR: Final = 16.0
TOP: Final = 26.0
MOST: Final = 4_000
"""Marks of one drawing, at most."""
_THIN: Final = 3.0
"""Width of the shortest bar."""
REWARDS: Final = "rewards"


class Mark(NamedTuple):
    """A bar of a lane, or a point in time."""

    kind: str
    """``call, tool, agent, operation, reward, message, exception, span``."""
    x: float
    y: float
    width: float
    title: str
    call: str
    """Id of the call, if it is one."""
    failed: bool
    again: bool
    """The SDK's repetition of a call, or a call that was repeated."""


@dataclass
class Lane:
    """The line of one agent."""

    name: str
    y: float
    count: int = 0


@dataclass
class Timeline:
    """Lanes, marks and ticks in the units of an SVG's view box."""

    lanes: list[Lane] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    height: float = 0.0
    width: float = WIDTH
    left: float = LEFT
    left_out: int = 0
    """Marks beyond the most that are drawn; the tree below the drawing has them all."""
    seconds: float = 0.0


class _Placed(NamedTuple):
    node: SpanNode
    lane: str
    start: float
    end: float


def timeline(roots: Sequence[SpanNode], spans: Sequence[Span], calls: Mapping[str, Call]) -> Timeline:
    """Return the timeline of an attempt: its tree, the times of its spans, its calls by id."""
    times = {span.span_id: (span.start_time, span.end_time) for span in spans if span.span_id}
    placed = list(_place(roots, "agent", times))
    out = Timeline()
    if not placed:
        return out
    begin = min(one.start for one in placed)
    out.seconds = max(max(one.end for one in placed) - begin, 1e-6)
    scale = (WIDTH - LEFT - RIGHT) / out.seconds
    lanes: dict[str, Lane] = {}
    for one in sorted(placed, key=lambda one: (one.lane == REWARDS, one.start)):
        if one.lane not in lanes:
            lanes[one.lane] = Lane(one.lane, TOP + LANE * len(lanes))
        lanes[one.lane].count += 1
    shown = [
        one for one in placed if one.node.kind != "agent" or one.node.facts.get("operation") != "create_agent"
    ]
    for one in shown[:MOST]:
        x = LEFT + (one.start - begin) * scale
        width = max(_THIN, (one.end - one.start) * scale)
        call = str(one.node.facts.get("call") or "")
        out.marks.append(
            Mark(
                one.node.kind,
                round(min(x, WIDTH - RIGHT - _THIN), 2),
                lanes[one.lane].y + (LANE - BAR) / 2,
                round(width, 2),
                _title(one, begin),
                call,
                bool(one.node.error),
                bool(call in calls and calls[call].retry),
            )
        )
    out.left_out = max(0, len(shown) - MOST)
    out.lanes = list(lanes.values())
    out.height = TOP + LANE * len(lanes) + 8
    out.ticks = [Tick(round(LEFT + t * scale, 1), f"{label(t)} s") for t in _times(out.seconds)]
    return out


def _times(seconds: float) -> list[float]:
    rough, power = seconds / 6, 1e-6
    while power * 10 <= rough:
        power *= 10
    step = next((power * m for m in (1, 2, 5, 10) if power * m >= rough), power * 10)
    return [round(i * step, 9) for i in range(int(seconds / step) + 1)]


def _place(nodes: Sequence[SpanNode], agent: str, times: Mapping[str, tuple[float, float]]) -> list[_Placed]:
    """Return nodes with their lanes, without recursion: a trace may be nested deeply."""
    found: list[_Placed] = []
    waiting = [(node, agent) for node in reversed(nodes)]
    while waiting:
        node, above = waiting.pop()
        lane = above
        if node.kind == "agent" or (node.kind == "call" and node.name != "model"):
            lane = node.name
        elif isinstance(node.facts.get("agent"), str):
            lane = str(node.facts["agent"])
        start, end = times.get(node.span_id, (0.0, 0.0))
        if start:
            found.append(_Placed(node, REWARDS if node.kind == "reward" else lane, start, max(start, end)))
        waiting += [(child, lane) for child in reversed(node.children)]
    own = [
        one for one in found if one.node.kind != "span" or not one.node.children
    ]  # not the span of the whole
    return own or found


def _title(one: _Placed, begin: float) -> str:
    node, facts = one.node, one.node.facts
    said = f"{node.kind} {node.name}, from {one.start - begin:.3f} s, {1000 * (one.end - one.start):.1f} ms"
    if node.kind == "call":
        said += f"\n{facts.get('tokens_in', '?')} → {facts.get('tokens_out', '?')} tokens"
        said += f", {facts['verdict']}" if facts.get("verdict") else ""
        said += f"\n{str(facts['answer'])[:300]}" if facts.get("answer") else ""
    elif node.kind == "tool":
        said += f"\n{str(facts.get('arguments', ''))[:200]} → {str(facts.get('result', ''))[:200]}"
    elif node.kind == "reward":
        said += f"\n{facts.get('value')} of {facts.get('of')}"
    return said + (f"\n✗ {node.error[:300]}" if node.error else "")
