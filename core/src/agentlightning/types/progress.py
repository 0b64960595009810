"""How far a run is with what it does now, for trackers that show it."""

from __future__ import annotations

from agentlightning.types.base import Model


class Progress(Model):
    """A long piece of work: the rollouts of a step or of an evaluation, or the update of a policy."""

    what: str
    """``rollouts``, ``evaluation <name>``, ``update``."""
    step: int | None = None
    """The step, from 0; ``None`` for an evaluation."""
    policy: str | None = None
    """The policy that is updated, if a run has several."""
    unit: str = "rollouts"
    done: int = 0
    total: int = 0
    """In ``unit``; 0: not known."""
    tokens: int = 0
    """Tokens computed so far."""
    rollouts: list[str] = []
    """Ids of the rollouts that are waited for: whoever shows progress counts their ends and their calls."""
    memory: dict[str, int] = {}
    """Process → bytes of its memory (resident set size)."""
