"""The forest of a rollout: which calls continue which, drawn as rows of training with their branches.

Calls of one row stand on one line. A branch hangs below the call that it branches from, a break below
the call that it failed to merge with, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from agentlightning.credit.forest import Forest
from agentlightning.credit.merge_failures import MergeLink
from agentlightning.types import Call
from agentlightning.types.select import caller_name

NODE: Final = 132.0
GAP: Final = 26.0
LINE: Final = 62.0
BOX: Final = 40.0
MOST: Final = 600
"""Calls of one drawing, at most."""


class Node(NamedTuple):
    """A call in the drawing."""

    call: str
    x: float
    y: float
    name: str
    tokens: str
    kind: str
    """``extends, branch, break, start, left-out``."""
    title: str


class Edge(NamedTuple):
    """From an earlier call to a later one."""

    path: str
    kind: str
    reason: str
    x: float
    y: float


@dataclass
class Drawing:
    """Nodes and edges in the units of an SVG's view box."""

    nodes: list[Node] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    width: float = 0.0
    height: float = 0.0
    left_out: int = 0


class Left(NamedTuple):
    """A call that is in no row, and why."""

    call: Call
    reason: str
    text: str


def draw(forest: Forest, left: Sequence[Left]) -> Drawing:
    """Return the drawing of a forest; calls that are in no row stand on a line of their own."""
    places: dict[str, tuple[int, int]] = {}
    lines: list[Sequence[Call]] = [path.own for path in forest.paths]
    for number, own in enumerate(lines):
        link = forest.links[own[0].call_id]
        before = places.get(link.earlier or "", (-1, 0))[0]
        for at, call in enumerate(own):
            places[call.call_id] = (before + 1 + at, number)
    out = Drawing()
    for own in lines:
        for call in own:
            if len(out.nodes) == MOST:
                out.left_out += 1
                continue
            link = forest.links[call.call_id]
            out.nodes.append(_node(call, places, link))
            if link.earlier in places:
                out.edges.append(_edge(places[link.earlier], places[call.call_id], link))
    for at, one in enumerate(left[:MOST]):
        places[one.call.call_id] = (at % 8, len(lines) + at // 8)
        link = MergeLink("left-out", None, one.reason)
        out.nodes.append(_node(one.call, places, link, f"not trained, {one.reason}: {one.text}"))
    out.left_out += max(0, len(left) - MOST)
    shown = [places[node.call] for node in out.nodes]
    out.width = max((x for x, _ in shown), default=0) * (NODE + GAP) + NODE + 12
    out.height = (max((y for _, y in shown), default=0) + 1) * LINE + 6
    return out


def _node(call: Call, places: Mapping[str, tuple[int, int]], link: MergeLink, said: str = "") -> Node:
    column, line = places[call.call_id]
    count = f"{len(call.prompt_ids or ())} → {len(call.response_ids or ())}"
    title = f"{call.call_id}\n{said or link.text()}"
    return Node(
        call.call_id, column * (NODE + GAP) + 6, line * LINE + 8, caller_name(call.tags) or "call", count,
        link.kind, title,
    )  # fmt: skip


def _edge(start: tuple[int, int], end: tuple[int, int], link: MergeLink) -> Edge:
    x1, y1 = start[0] * (NODE + GAP) + 6 + NODE, start[1] * LINE + 8 + BOX / 2
    x2, y2 = end[0] * (NODE + GAP) + 6, end[1] * LINE + 8 + BOX / 2
    if start[1] == end[1]:
        path = f"M{x1:g} {y1:g}H{x2:g}"
    else:
        middle = x1 + GAP / 2
        path = f"M{x1:g} {y1:g}H{middle:g}V{y2:g}H{x2:g}"
    return Edge(path, link.kind, link.reason, x2 - 4, y2 - 8)
