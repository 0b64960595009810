"""One open search: its parts, its held-out evaluations, and its result.

:class:`Search` is what the algorithms of this package share. They differ in how they choose the next
candidates.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agl_gateway.budget.limits import BudgetSpent

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.evaluation.intervals import mean_interval
from agentlightning.types import Evaluation
from agl_apo.assistants import Assistants
from agl_apo.candidates import Candidate, CandidateBook
from agl_apo.ledger import Ledger
from agl_apo.scoring import Scorer
from agl_apo.settings import Split


@dataclass(slots=True)
class Search:
    """A search under way."""

    context: Context
    ledger: Ledger
    scorer: Scorer
    assistants: Assistants
    split: Split
    first: Candidate
    book: CandidateBook
    scores: dict[str, float] = field(default_factory=dict)
    """Candidate → mean reward on the tasks that candidates are chosen by."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Edits that made no new candidate → how many, e.g. ``duplicate``."""
    stopped: str | None = None
    """Why the search ended before its last round."""
    before: Evaluation | None = None
    after: Evaluation | None = None

    async def measure_first(self) -> None:
        """Evaluate the first prompts on the held-out tasks, and keep as much back for the winner."""
        spent = self.ledger.total
        self.before = await self.scorer.evaluation("before", self.first, self.split.held_out)
        after = self.ledger.total
        kept = self.ledger.reserved
        kept.calls = after.calls - spent.calls
        kept.prompt_tokens = after.prompt_tokens - spent.prompt_tokens
        kept.completion_tokens = after.completion_tokens - spent.completion_tokens
        kept.money = after.money - spent.money

    def ranked(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the scored candidates, the best first; among equals the one that was made first."""
        scored = [one for one in candidates if one.candidate_id in self.scores]
        return sorted(scored, key=lambda one: (-self.scores[one.candidate_id], one.origin.number))

    @property
    def winner(self) -> Candidate:
        """Return the best scored candidate; the first prompts if none has a score."""
        return next(iter(self.ranked(list(self.book.known.values()))), self.first)

    async def measure_winner(self) -> None:
        """Evaluate the winner on the held-out tasks."""
        if self.before is None:
            return
        try:
            self.after = await self.scorer.evaluation(
                "after", self.winner, self.split.held_out, held_back=False
            )
        except BudgetSpent as error:
            self.stopped = f"{self.stopped}; " if self.stopped else ""
            self.stopped += f"the winner's held-out evaluation is missing: {error}"

    def result(self, name: str) -> dict[str, Any]:
        """Return the search's part of the run's summary."""
        winner, before, after = self.winner, self.before, self.after
        return {
            "algorithm": name,
            "prompts": winner.texts,
            "first_prompts": self.first.texts,
            "winner": winner.candidate_id,
            "reward_before": before.reward if before else None,
            "ci_before": list(before.ci) if before and before.ci else None,
            "reward_after": after.reward if after else None,
            "ci_after": list(after.ci) if after and after.ci else None,
            **_gain(before, after),
            "eval_tasks": len(self.split.held_out),
            "eval_failed": [one.failed if one else None for one in (before, after)],
            "candidates": len(self.book.known),
            "scored": len(self.scores),
            "train_scores": [self.scores.get(one) for one in (self.first.candidate_id, winner.candidate_id)],
            "stopped": self.stopped,
            "failures": dict(self.assistants.failures + self.rejected),
            "failed_rollouts": self.scorer.failed,
            "reused": {"rollouts": self.scorer.reused, "requests": self.assistants.reused},
            "spent": self.ledger.summary(),
        }

    def write(self, result: dict[str, Any]) -> None:
        """Write the winner's prompts into the run's folder: ``prompts/<name>.txt``, and ``prompts.json``."""
        folder = self.context.folder / "prompts"
        folder.mkdir(exist_ok=True)
        for name, text in self.winner.texts.items():
            safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
            (folder / f"{safe}.txt").write_text(text, encoding="utf-8")
        shown = {**result, "scores": dict(self.scores)}
        (self.context.folder / "prompts.json").write_text(
            json.dumps(shown, indent=2) + "\n", encoding="utf-8"
        )


def _gain(before: Evaluation | None, after: Evaluation | None) -> dict[str, Any]:
    """Return the mean difference of the held-out rewards and its 95 % interval, over the tasks of which both
    evaluations have a reward.
    """
    pairs = zip(before.rewards, after.rewards, strict=True) if before and after else ()
    gains = [b - a for a, b in pairs if a is not None and b is not None]
    if not gains:
        return {"gain": None, "ci_gain": None, "interval_gain": None}
    found = mean_interval(gains, shares=False)
    ends = list(found.ends) if found.ends else None
    return {"gain": math.fsum(gains) / len(gains), "ci_gain": ends, "interval_gain": found.kind}
