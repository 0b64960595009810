"""The search for parents that looks at whole prompts: what a forest must be, call by call."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from agentlightning.credit.forest import temperature_of
from agentlightning.credit.groups import call_order
from agentlightning.types import Call
from agentlightning.types.tokens import WIDTH, pack


class Node:
    """A call in the forest."""

    def __init__(self, call: Call, parent: Node | None) -> None:
        self.call, self.parent = call, parent
        self.children: list[Node] = []


def parents(calls: Sequence[Call], temperature: float = 1.0) -> dict[str, str | None]:
    """Call id → id of the call that it extends."""
    nodes = _link(sorted(calls, key=call_order), temperature)
    return {n.call.call_id: n.parent.call.call_id if n.parent else None for n in nodes}


def paths(calls: Sequence[Call], temperature: float = 1.0) -> list[tuple[list[str], list[str]]]:
    """(shared, own) call ids of each row."""
    nodes = _link(sorted(calls, key=call_order), temperature)
    return [_path(n) for n in nodes if n.parent is None or n.parent.children[0] is not n]


def _path(start: Node) -> tuple[list[str], list[str]]:
    shared, above = [], start.parent
    while above is not None:
        shared.append(above.call.call_id)
        above = above.parent
    own, below = [start.call.call_id], start
    while below.children:
        below = below.children[0]
        own.append(below.call.call_id)
    return shared[::-1], own


class _Ends:
    """Where earlier calls end: finds the longest one that is a strict prefix of a prompt."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, bytes], Node] = {}
        self._last_ids: dict[int, set[int]] = {}

    def add(self, node: Node) -> None:
        """Make a call findable; of two with the same ids the first stays."""
        prompt, answer = _lists(node.call)
        length = len(prompt) + len(answer)
        self._nodes.setdefault((length, _digest(pack(prompt) + pack(answer))), node)
        self._last_ids.setdefault(length, set()).add(answer[-1])

    def longest(self, prompt: Sequence[int]) -> Node | None:
        """The longest call that ends strictly inside this prompt and equals its head."""
        lengths = sorted(n for n, ids in self._last_ids.items() if n < len(prompt) and prompt[n - 1] in ids)
        packed, state, done = memoryview(pack(prompt)), blake2b(digest_size=16), 0
        found: Node | None = None
        for length in lengths:
            state.update(packed[done * WIDTH : length * WIDTH])
            done = length
            found = self._nodes.get((length, state.digest()), found)
        return found


def _link(ordered: Sequence[Call], temperature: float) -> list[Node]:
    """A node per call, tied to the call it extends. Choices of one request do not see each other."""
    lanes: dict[tuple[str, float], _Ends] = {}
    nodes: list[Node] = []
    waiting: list[tuple[_Ends, Node]] = []
    for call in ordered:
        if waiting and waiting[0][1].call.sequence != call.sequence:
            for lane, node in waiting:
                lane.add(node)
            waiting = []
        lane = lanes.setdefault((call.policy, temperature_of(call, temperature)), _Ends())
        node = Node(call, lane.longest(_lists(call)[0]))
        if node.parent is not None:
            node.parent.children.append(node)
        nodes.append(node)
        waiting.append((lane, node))
    for node in nodes:
        node.children.sort(key=lambda child: (*_lists(child.call), list(child.call.logprobs or ())))
    return nodes


def _lists(call: Call) -> tuple[list[int], list[int]]:
    assert call.prompt_ids is not None and call.response_ids is not None
    return list(call.prompt_ids), list(call.response_ids)


def _digest(packed: bytes) -> bytes:
    return blake2b(packed, digest_size=16).digest()
