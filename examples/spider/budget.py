"""How much of everything a run of the agent may use."""

from __future__ import annotations

from dataclasses import dataclass

from spider.sql.execution import LIMITS, Limits


@dataclass(frozen=True, slots=True)
class Budget:
    """The defaults are the public settings of this task."""

    turns: int = 3
    """Queries that are written, the first one included."""
    schema_chars: int = 2_048
    sample_rows: int = 3
    """Rows of each table in the schema."""
    result_chars: int = 2_048
    result_rows: int = 20
    answer_tokens: int = 2_048
    """Tokens of one model answer."""
    sql: Limits = LIMITS


PUBLIC = Budget()
BRIEF = Budget(schema_chars=1_000, sample_rows=0, result_chars=100, result_rows=2, answer_tokens=48)
"""For the small policy, which cannot read much."""
