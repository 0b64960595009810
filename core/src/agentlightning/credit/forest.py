"""The forest: which calls continue which, so that a conversation becomes one row instead of one row a turn.

A call extends the *longest* earlier call of its rollout, policy and temperature whose prompt + response is a
strict prefix of its prompt, whichever calls came between: agents that take turns each grow their own line.
Calls with identical prompts never extend each other. One of the calls that extend another continues its row;
every further one is a *branch*: a new row in which the shared part is context.

Invariants: every call is the *own* call of exactly one path, hence every response token is trained exactly
once; which call continues a row depends on the content of the calls, not on the order in which parallel calls
arrived.

Prefixes are compared by digests, taken at the lengths where an earlier call ends. Calls that were read from a
store share one buffer with the call that they continue, and a buffer is hashed once: the work grows with the
tokens of the rows, not with the tokens of the prompts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from agentlightning.credit.groups import call_order
from agentlightning.credit.merge_failures import Continuations, MergeLink, classify
from agentlightning.types import Call
from agentlightning.types.tokens import WIDTH, PrefixDigests, TokenIds, as_ids, shared_buffer


@dataclass(slots=True, eq=False)
class CallNode:
    """A call in the forest."""

    call: Call
    data: PrefixDigests
    """A buffer that begins with the call's prompt and response; calls that continue the call may share it."""
    end: int
    """Bytes of prompt and response."""
    parent: CallNode | None = None
    children: list[CallNode] = field(default_factory=list)

    def ancestors(self) -> Iterator[CallNode]:
        """The calls that this call extends, the nearest first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent

    @property
    def starts_row(self) -> bool:
        """Whether this call begins a row: it extends no call, or another call continues that row."""
        return self.parent is None or self.parent.children[0] is not self


@dataclass(frozen=True, slots=True)
class CallPath:
    """The calls of one row, each a prefix of the next."""

    shared: tuple[Call, ...]
    """Ancestors that are trained in another row: context in this row."""
    own: tuple[Call, ...]
    """Calls that are trained in this row; never empty."""


@dataclass(frozen=True, slots=True)
class Forest:
    """The paths of one rollout, in the order of their first own call."""

    paths: list[CallPath]
    links: dict[str, MergeLink]
    """Call id → how the call merged, or why it did not."""

    @property
    def merge_failures(self) -> dict[str, int]:
        """Reason → number of calls that did not continue the row of an earlier call."""
        return dict(Counter(link.reason for link in self.links.values() if link.reason))


def build_forest(
    calls: Iterable[Call],
    *,
    merge: bool = True,
    temperature: float = 1.0,
    weighed: Collection[str] = (),
) -> Forest:
    """Build the forest over the calls of *one* rollout.

    ``merge=False``: every call is a path of its own. ``temperature``: that of calls that do not state one,
    and of the calls with the ids ``weighed``, which are trained at the run's temperature by importance.
    ``ValueError`` for calls of several rollouts, or without token ids or a response.
    """
    ordered = sorted(calls, key=call_order)
    _check(ordered)
    if not merge:
        links = {call.call_id: MergeLink("start", None, "") for call in ordered}
        return Forest([CallPath((), (call,)) for call in ordered], links)
    nodes = _link(ordered, temperature, weighed)
    return Forest([_path(node) for node in nodes if node.starts_row], _merge_links(nodes))


def temperature_of(call: Call, default: float) -> float:
    """The temperature at which a call was sampled."""
    stated = call.sampling.get("temperature")
    return default if stated is None else float(stated)


class _Ends:
    """Finds the longest earlier call that is a strict prefix of a prompt."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, bytes], CallNode] = {}
        self._last_ids: dict[int, set[bytes]] = {}

    def add(self, node: CallNode) -> None:
        """Make a call findable; of two calls with the same ids the first is found."""
        end = node.end
        self._nodes.setdefault((end, node.data.digest(end)), node)
        self._last_ids.setdefault(end, set()).add(node.data.tail(end, WIDTH))

    def longest(self, data: PrefixDigests, own: int) -> CallNode | None:
        """Return the longest call that ends strictly inside the prompt, the first ``own`` bytes of ``data``,
        and equals its beginning.
        """
        ends = sorted(n for n, ids in self._last_ids.items() if n < own and data.tail(n, WIDTH) in ids)
        found: CallNode | None = None
        for place in zip(ends, data.digests(ends), strict=True):
            found = self._nodes.get(place, found)
        return found


def _link(ordered: Sequence[Call], temperature: float, weighed: Collection[str]) -> list[CallNode]:
    """A node for each call, tied to the call it extends. Choices of one request do not see each other."""
    lanes: dict[tuple[str, float], _Ends] = {}
    nodes: list[CallNode] = []
    waiting: list[tuple[_Ends, CallNode]] = []
    for call in ordered:
        if waiting and waiting[0][1].call.sequence != call.sequence:
            for lane, node in waiting:
                lane.add(node)
            waiting = []
        own_temperature = temperature if call.call_id in weighed else temperature_of(call, temperature)
        lane = lanes.setdefault((call.policy, own_temperature), _Ends())
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
    shared = [above.call for above in start.ancestors()]
    own, below = [start.call], start
    while below.children:
        below = below.children[0]
        own.append(below.call)
    return CallPath(tuple(reversed(shared)), tuple(own))


def _merge_links(nodes: Sequence[CallNode]) -> dict[str, MergeLink]:
    """Call id → its link. A call whose messages continue a call that it does not extend is a break."""
    by_policy: dict[str, Continuations] = {}
    links: dict[str, MergeLink] = {}
    for node in nodes:
        call = node.call
        earlier_calls = by_policy.setdefault(call.policy, Continuations())
        match = earlier_calls.find(call)
        earlier_calls.add(call)
        if match is not None and all(above.call is not match[0] for above in node.ancestors()):
            link = MergeLink("break", match[0].call_id, classify(match[0], call, match[1]))
        elif node.parent is None:
            link = MergeLink("start", None, "")
        elif node.starts_row:
            link = MergeLink("branch", node.parent.call.call_id, "branch")
        else:
            link = MergeLink("extends", node.parent.call.call_id, "")
        links[call.call_id] = link
    return links


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
