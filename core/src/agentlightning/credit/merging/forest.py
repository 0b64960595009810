"""The forest: which calls continue which, so that a conversation becomes one row instead of one row a turn.

A call extends the *longest* earlier call of its rollout, policy and temperature whose prompt + response is a
strict prefix of its prompt, whoever came between: agents that take turns each grow their own line. Calls with
identical prompts never extend each other. One of the calls that extend another continues its row; every
further one is a *branch*: a new row in which the shared part is context.

Invariants: every call is the *own* call of exactly one path, hence every response token is trained exactly
once; which call continues a row depends on what the calls hold, not on the order in which parallel ones came.

Prefixes are compared by digests, taken at the lengths where an earlier call ends. Calls that were read from a
store share one buffer with the call they continue, as it was found when they were written, and a buffer is
hashed once: the work grows with the tokens of the rows, not with those of the prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from agentlightning.credit.eligibility.trainable import call_order
from agentlightning.credit.merging.merge_failures import merge_failures
from agentlightning.types import Call
from agentlightning.types.tokens import WIDTH, PrefixDigests, TokenIds, as_ids, shared_buffer


@dataclass(slots=True, eq=False)
class CallNode:
    """A call in the forest."""

    call: Call
    data: PrefixDigests
    """What its prompt and response begin; calls that continue it may share it."""
    end: int
    """Bytes of prompt and response."""
    parent: CallNode | None = None
    children: list[CallNode] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CallPath:
    """The calls of one row, each a prefix of the next."""

    shared: tuple[Call, ...]
    """Ancestors that are trained in another row: context here."""
    own: tuple[Call, ...]
    """Calls that are trained in this row; never empty."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Paths in order of their first own call, and why calls did not merge."""

    paths: list[CallPath]
    merge_failures: dict[str, int]


def build_forest(calls: Iterable[Call], *, merge: bool = True, temperature: float = 1.0) -> Forest:
    """The forest over calls of *one* rollout; all must have ids and a response that is not empty.

    ``merge=False``: every call is a path of its own. ``temperature``: of calls that do not state theirs.
    """
    ordered = sorted(calls, key=call_order)
    _check(ordered)
    if not merge:
        return Forest([CallPath((), (call,)) for call in ordered], {})
    nodes = _link(ordered, temperature)
    starts = [n for n in nodes if n.parent is None or n.parent.children[0] is not n]
    return Forest([_path(node) for node in starts], _merge_failures(nodes))


def temperature_of(call: Call, default: float) -> float:
    """Temperature a call was sampled at."""
    stated = call.sampling.get("temperature")
    return default if stated is None else float(stated)


class _Ends:
    """Where earlier calls end: finds the longest one that is a strict prefix of a prompt."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, bytes], CallNode] = {}
        self._last_ids: dict[int, set[bytes]] = {}

    def add(self, node: CallNode) -> None:
        """Make a call findable; of two with the same ids the first stays."""
        end = node.end
        self._nodes.setdefault((end, node.data.digest(end)), node)
        self._last_ids.setdefault(end, set()).add(node.data.tail(end, WIDTH))

    def longest(self, data: PrefixDigests, own: int) -> CallNode | None:
        """The longest call that ends strictly inside this prompt of ``own`` bytes and equals its head."""
        ends = sorted(n for n, ids in self._last_ids.items() if n < own and data.tail(n, WIDTH) in ids)
        found: CallNode | None = None
        for place in zip(ends, data.digests(ends), strict=True):
            found = self._nodes.get(place, found)
        return found


def _link(ordered: Sequence[Call], temperature: float) -> list[CallNode]:
    """A node per call, tied to the call it extends. Choices of one request do not see each other."""
    lanes: dict[tuple[str, float], _Ends] = {}
    nodes: list[CallNode] = []
    waiting: list[tuple[_Ends, CallNode]] = []
    for call in ordered:
        if waiting and waiting[0][1].call.sequence != call.sequence:
            for lane, node in waiting:
                lane.add(node)
            waiting = []
        lane = lanes.setdefault((call.policy, temperature_of(call, temperature)), _Ends())
        data, own, end = shared_buffer(*_ids(call))
        node = CallNode(call, data, end, lane.longest(data, own))
        if node.parent is not None:
            node.parent.children.append(node)
        nodes.append(node)
        waiting.append((lane, node))
    for node in nodes:
        node.children.sort(key=lambda child: (*_ids(child.call), child.call.logprobs or ()))
    return nodes


def _path(start: CallNode) -> CallPath:
    shared: list[Call] = []
    above = start.parent
    while above is not None:
        shared.append(above.call)
        above = above.parent
    own = [start.call]
    below = start
    while below.children:
        below = below.children[0]
        own.append(below.call)
    return CallPath(tuple(reversed(shared)), tuple(own))


def _merge_failures(nodes: Sequence[CallNode]) -> dict[str, int]:
    """One reason a call at most: the named one if its messages continue a call it does not extend, else
    branch."""
    by_id = {node.call.call_id: node for node in nodes}

    def extends(later: Call, earlier: Call) -> bool:
        above: CallNode | None = by_id[later.call_id].parent
        while above is not None and above.call is not earlier:
            above = above.parent
        return above is not None

    count: Counter[str] = Counter()
    by_policy: dict[str, list[Call]] = {}
    for node in nodes:
        by_policy.setdefault(node.call.policy, []).append(node.call)
    named = {k: v for calls in by_policy.values() for k, v in merge_failures(calls, extends).items()}
    for node in nodes:
        branch = node.parent is not None and node.parent.children[0] is not node
        reason = named.get(node.call.call_id, "branch" if branch else "")
        if reason:
            count[reason] += 1
    return dict(count)


def _check(calls: Sequence[Call]) -> None:
    for call in calls:
        if call.prompt_ids is None or not call.response_ids:
            raise ValueError(
                f"call {call.call_id!r} has no token ids or an empty response: it cannot be trained"
            )
    rollouts = {call.rollout_id for call in calls}
    if len(rollouts) > 1:
        raise ValueError(f"a forest holds the calls of one rollout, not of {sorted(rollouts)}")


def _ids(call: Call) -> tuple[TokenIds, TokenIds]:
    assert call.prompt_ids is not None and call.response_ids is not None
    return as_ids(call.prompt_ids), as_ids(call.response_ids)
