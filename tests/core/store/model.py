"""What a store should do with work, in plain Python: the model that stores are compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentlightning.store.base import AttemptEnded, Conflict
from agentlightning.types.failure import failure_kind

SILENCE = 30.0
FINAL = ("succeeded", "failed", "cancelled")
QUEUED = ("queuing", "requeuing")
Lease = tuple[str, int]
"""A rollout and the number of its attempt."""


@dataclass
class Rollout:
    """One unit of work."""

    content: int
    max_attempts: int
    retry_on: frozenset[str]
    status: str = "queuing"
    forgiven: int = 0
    heard: float = 0.0
    attempts: list[str] = field(default_factory=list)
    """Status of each."""
    spans: Counter[int] = field(default_factory=Counter)
    calls: Counter[int] = field(default_factory=Counter)

    @property
    def live(self) -> bool:
        """Its latest attempt is at work."""
        return bool(self.attempts) and self.attempts[-1] in ("preparing", "running")

    @property
    def revivable(self) -> bool:
        """Its latest attempt fell silent, and nobody has taken its place."""
        unheard = bool(self.attempts) and self.attempts[-1] == "unresponsive"
        return unheard and self.status == "requeuing" and len(self.attempts) > self.forgiven

    def end(self, status: str, reason: str | None) -> None:
        """The latest attempt ends."""
        self.attempts[-1] = status
        kind = (failure_kind(reason) or "failed") if status == "failed" else status
        if status == "succeeded":
            self.status = "succeeded"
        else:
            again = kind in self.retry_on and len(self.attempts) - self.forgiven < self.max_attempts
            self.status = "requeuing" if again else "failed"


class Model:
    """The store."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.rollouts: dict[str, Rollout] = {}
        self.refused: Counter[str] = Counter()

    def enqueue(self, rollout_id: str, content: int, max_attempts: int, retry_on: Sequence[str]) -> str:
        known = self.rollouts.get(rollout_id)
        if known is None:
            known = self.rollouts[rollout_id] = Rollout(content, max_attempts, frozenset(retry_on))
        elif known.content != content:
            raise Conflict("other content")
        return known.status

    def _queue(self) -> list[str]:
        return [i for i, r in self.rollouts.items() if r.status in QUEUED]

    def dequeue(self, limit: int) -> list[Lease]:
        if not self._queue():
            self.expire()
        return [self._lease(i) for i in self._queue()[:limit]]

    def _lease(self, rollout_id: str) -> Lease:
        rollout = self.rollouts[rollout_id]
        rollout.attempts.append("preparing")
        rollout.status, rollout.heard = "preparing", self.clock()
        return rollout_id, len(rollout.attempts)

    def start(self, rollout_id: str) -> Lease:
        rollout = self.rollouts[rollout_id]
        if rollout.status in FINAL:
            raise Conflict("final")
        if rollout.live:
            rollout.attempts[-1] = "unresponsive"
        return self._lease(rollout_id)

    def _writer(self, lease: Lease, what: str, n: int = 1, fence: int | None = None) -> Rollout:
        rollout_id, number = lease
        rollout = self.rollouts[rollout_id]
        latest = number == len(rollout.attempts) and number > rollout.forgiven and fence in (None, number)
        if latest and (rollout.live or rollout.revivable):
            return rollout
        why = f"after-{rollout.attempts[number - 1]}" if latest else "fenced"
        self.refused[f"{what}-{why}"] += n
        raise AttemptEnded(why)

    def _touch(self, rollout: Rollout) -> None:
        rollout.status = rollout.attempts[-1] = "running"
        rollout.heard = self.clock()

    def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]:
        lost = []
        for lease in leases:
            try:
                self._touch(self._writer(lease, "beat"))
            except AttemptEnded:
                lost.append(lease)
        self.refused = Counter({k: n for k, n in self.refused.items() if not k.startswith("beat")})
        return lost

    def add_spans(self, lease: Lease, n: int) -> int:
        rollout = self._writer(lease, "spans", n)
        self._touch(rollout)
        rollout.spans[lease[1]] += n
        return rollout.spans[lease[1]] + rollout.calls[lease[1]]

    def add_calls(self, lease: Lease, n: int, fence: int | None) -> None:
        rollout = self._writer(lease, "calls", n, fence)
        self._touch(rollout)
        rollout.calls[lease[1]] += n

    def update(self, lease: Lease, status: str, reason: str | None, spans: int) -> str:
        rollout = self._writer(lease, "update")
        if status == "preparing" and rollout.attempts[-1] != "preparing":
            raise Conflict("back to preparing")
        rollout.spans[lease[1]] += spans
        if status in ("running", "preparing"):
            if spans or status == "running":
                self._touch(rollout)
            rollout.heard = self.clock()
        else:
            rollout.end(status, reason)
        return rollout.attempts[-1]

    def order(self, rollout_id: str, status: str) -> str:
        rollout = self.rollouts[rollout_id]
        if rollout.status == status:
            return status
        if rollout.status in FINAL:
            raise Conflict("final")
        if rollout.live:
            rollout.attempts[-1] = "succeeded" if status == "succeeded" else "failed"
        rollout.status = status
        return status

    def requeue(self, rollout_ids: Sequence[str]) -> list[str]:
        for rollout_id in rollout_ids:
            rollout = self.rollouts[rollout_id]
            if rollout.status == "queuing" and not rollout.attempts:
                continue
            if rollout.live:
                rollout.attempts[-1] = "unresponsive"
            rollout.status, rollout.forgiven = "requeuing", len(rollout.attempts)
        return [self.rollouts[i].status for i in rollout_ids]

    def expire(self) -> int:
        late = [r for r in self.rollouts.values() if r.live and r.heard + SILENCE <= self.clock()]
        for rollout in late:
            rollout.end("unresponsive", None)
        return len(late)

    def reopen(self) -> None:
        """Whoever lives has his time again."""
        for rollout in self.rollouts.values():
            rollout.heard = self.clock()
