"""A group of finished rollouts as a function sees it, and the functions that give it rewards.

Invariants: a function sees the rollouts that can be judged, in the order of their samples, and those that
cannot by name and reason alone; what it returns is one finite number or ``None`` (*missing*) for each, or it
is refused whole: nothing is clamped, and nothing missing becomes 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from agentlightning.capture.records import BadRecord, error_text, reward_number
from agentlightning.credit.rewards import resolve
from agentlightning.types import Record, UsageError
from agentlightning.types.record import tool_calls_of
from agl_audit.history.rescoring.trace import RolloutTrace, make_trace
from agl_judge.client import BadVerdict, JudgeClient, Message

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished rollout of a group."""

    rollout_id: str
    answer: str
    """The text of the last call's answer; empty without one."""
    threads: tuple[tuple[Message, ...], ...]
    """The messages of its calls: a call that goes on from the one before continues its thread, any other
    begins one. Most agents have one."""
    reward: float | None
    """The reward that it has of itself, if it has one."""
    rewards: Mapping[str, float]
    """All of its final rewards by name."""
    metadata: Mapping[str, Any]
    trace: RolloutTrace
    """Its calls with requests and answers."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages, thread after thread."""
        return tuple(message for thread in self.threads for message in thread)

    @property
    def transcript(self) -> str:
        """The messages as text."""
        return "\n\n---\n\n".join("\n".join(map(said, thread)) for thread in self.threads)


def finished(record: Record) -> Finished:
    """Return the rollout of a record as functions see it."""
    trace, rewards = make_trace(record), resolve(record)
    return Finished(
        rollout_id=record.rollout.rollout_id,
        answer=trace.answer,
        threads=threads_of(trace),
        reward=rewards.final,
        rewards=rewards.by_name,
        metadata={**record.rollout.metadata, **(record.attempt.metadata if record.attempt else {})},
        trace=trace,
    )


def threads_of(trace: RolloutTrace) -> tuple[tuple[Message, ...], ...]:
    """Return the messages of a trace's calls, thread by thread."""
    threads: list[list[Message]] = []
    for call in trace.calls:
        request = call.request if isinstance(call.request, Mapping) else {}
        given = request.get("messages")
        asked: list[Message] = (
            [one for one in given if isinstance(one, Mapping)]
            if isinstance(given, list)
            else [{"role": "user", "content": str(request.get("prompt", ""))}]
        )
        answer = call.answer["choices"][0].get("message") or {"role": "assistant", "content": call.text}
        whole = [*asked, answer]
        if threads and list(map(said, whole[: len(threads[-1])])) == list(map(said, threads[-1])):
            threads[-1] = whole
        else:
            threads.append(whole)
    return tuple(map(tuple, threads))


def said(message: Message) -> str:
    """Return a message as a line of text: who said what, and which tools it called."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    calls = [one.get("function") or {} for one in tool_calls_of(message)]
    called = "".join(f" [calls {one.get('name')}({one.get('arguments')})]" for one in calls)
    return f"{message.get('role') or 'assistant'}: {content or ''}{called}"


@dataclass(slots=True)
class Group:
    """The finished rollouts of one task."""

    task: Any
    group_id: str
    rollouts: tuple[Finished, ...]
    """Those that can be judged, in the order of their samples."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Rollout id → why it is not judged: the kind of its failure, ``straggler`` of a quorum included."""
    client: JudgeClient | None = None
    """What asks judges; ``None``: there is none."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Rollout id → why a function gave it no reward; a function may say so."""
    parts: dict[str, dict[str, float]] = field(default_factory=dict)
    """Rollout id → further rewards by name, which are shown and not trained."""
    asked: list[str] = field(default_factory=list)
    """Rollouts that hold the calls of the judges that were asked about this group."""

    async def ask(
        self,
        judge: str,
        messages: Sequence[Message],
        read: Callable[[str], T],
        *,
        repeat: int = 0,
        **sampling: Any,
    ) -> T | None:
        """Ask the frozen policy ``judge`` and return what ``read`` makes of its answer.

        ``read`` raises :class:`BadVerdict` for an answer that cannot be used: the judge is told why and asked
        again. ``None``: there is no usable answer. The same question is answered from the run's record;
        ``repeat`` counts questions that are meant to be asked anew. ``sampling``: fields of the request.
        """
        if self.client is None:
            raise UsageError(f"a judge ({judge!r}) was asked outside of a run: there is nobody who answers")
        about = {"group": self.group_id, "rollouts": [one.rollout_id for one in self.rollouts]}
        found = await self.client.ask(judge, messages, read, about=about, repeat=repeat, **sampling)
        self.asked.append(found.rollout_id)
        return found.value


Rewards = Sequence[float | None] | Mapping[str, float | None]


class GroupGrader(Protocol):
    """Gives one number to each rollout of a group."""

    @property
    def name(self) -> str:
        """What its rewards are by, in the store and in messages."""

    @property
    def relative(self) -> bool:
        """Whether its numbers only compare rollouts of one group. Then they say nothing of a policy, and
        evaluations count the rewards that rollouts have of themselves.
        """

    @property
    def judges(self) -> Sequence[str]:
        """Frozen policies that it asks."""

    async def __call__(self, group: Group) -> Rewards: ...


@dataclass(frozen=True)
class GroupFunction:
    """A function of a group as a grader. It remains callable as it is."""

    function: Callable[[Group], Rewards | Awaitable[Rewards]]
    relative: bool = True
    judges: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    async def __call__(self, group: Group) -> Rewards:
        found = self.function(group)
        return await found if inspect.isawaitable(found) else found


def group_reward(
    function: Callable[[Group], Any] | None = None, *, relative: bool = True, judges: Sequence[str] = ()
) -> Any:
    """Make a function of a :class:`Group`, plain or async, a reward that sees the group: ``group_reward`` of
    a run names it. It returns one number for each of ``group.rollouts``, as a list in their order or as a
    mapping by rollout id; ``None`` for one without a reward.

    ``relative=False``: its numbers mean the same in every group, so that evaluations count them too.
    ``judges``: names of the frozen policies that it asks, which are then checked before the run begins.
    """
    if function is None:
        return lambda given: GroupFunction(given, relative, tuple(judges))
    return GroupFunction(function, relative, tuple(judges))


def checked(group: Group, found: Any) -> list[float | None]:
    """Return what a grader gave, in the order of the group's rollouts. Raise :class:`BadVerdict` for anything
    that is not one finite number or ``None`` for each.
    """
    ids = [one.rollout_id for one in group.rollouts]
    if isinstance(found, Mapping):
        if unknown := sorted(set(map(str, found)) - {*ids}):
            raise BadVerdict(f"it has a reward for {unknown[0]!r}, which is no rollout of the group")
        if absent := [one for one in ids if one not in found]:
            raise BadVerdict(f"it has no entry for {absent[0]}; give None for a rollout without a reward")
        values = [found[one] for one in ids]
    elif isinstance(found, Sequence) and not isinstance(found, str | bytes):
        values = list(found)
        if len(values) != len(ids):
            raise BadVerdict(f"it has {len(values)} rewards for {len(ids)} rollouts")
    else:
        raise BadVerdict(
            f"it is {type(found).__name__}: give a list in the order of group.rollouts, or a mapping by "
            "rollout id"
        )
    return [None if value is None else _number(value, one) for value, one in zip(values, ids, strict=True)]


def _number(value: Any, of: str) -> float:
    if isinstance(value, bool):
        raise BadVerdict(f"the reward of {of} is {value}: give a number")
    try:
        return reward_number(value, f"the reward of {of}")
    except BadRecord as error:
        raise BadVerdict(error_text(error)) from None
