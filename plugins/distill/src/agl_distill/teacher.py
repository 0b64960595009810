"""Teachers: what gives each token of a row a logprob. A folder is scored by a driver's inspector.

Invariant: a teacher reads the ids that the policy sampled, and never text of its own tokenizer; one with
another vocabulary is refused before the run begins (:mod:`.vocabulary`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from agentlightning.log_limit import limited
from agentlightning.specs import Inspector
from agentlightning.types import Row, Segment, UsageError
from agl_distill.vocabulary import check_same_vocabulary

log = limited(__name__)
FAILED, NOT_FINITE, WRONG_LENGTH = "distill-failed", "distill-not-finite", "distill-wrong-length"
CONSTRAINED, OFF_POLICY = "distill-constrained", "distill-off-policy"
Answer = list[float] | str
"""The logprob of each token of a row, 0 outside its mask; or the reason why there is none."""


class Teacher(Protocol):
    """Scores rows by the ids that they hold."""

    async def open(self, policy: Path) -> None:
        """Raise :class:`UsageError` if it cannot teach the policy in this folder."""

    def refuses(self, row: Row, segment: Segment) -> str:
        """Why it can give no logprob of the distribution that the call was sampled from; empty if it can."""

    async def score(self, rows: Sequence[Row]) -> list[Answer]:
        """One answer for each row, in their order."""

    async def close(self) -> None:
        """Free what it holds."""


class FolderTeacher:
    """A policy folder, opened by ``inspect`` of a driver (:class:`agentlightning.specs.DriverSpec`)."""

    def __init__(self, folder: Path, inspector: Inspector) -> None:
        self.folder = folder
        self._inspector = inspector

    def __str__(self) -> str:
        return str(self.folder)

    async def open(self, policy: Path) -> None:
        if policy != self.folder:
            await asyncio.to_thread(check_same_vocabulary, policy, self.folder)
        await asyncio.to_thread(self._inspector.logprobs, [])  # reads the weights, which may not be there

    def refuses(self, row: Row, segment: Segment) -> str:
        return OFF_POLICY if segment.off_policy else ""

    async def score(self, rows: Sequence[Row]) -> list[Answer]:
        return await asyncio.to_thread(self._score, rows)

    async def close(self) -> None:
        return None

    def _score(self, rows: Sequence[Row]) -> list[Answer]:
        """All rows at once; if one of them is unfit, each by itself."""
        try:
            return list(self._inspector.logprobs(rows))
        except (UsageError, ValueError) as error:
            if len(rows) == 1:
                log.warning("the teacher %s cannot score row %s: %s", self, rows[0].row_id, error)
                return [FAILED]
        return [self._score([row])[0] for row in rows]
