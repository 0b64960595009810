"""docs/failures.md is the failure table: its kinds, their meanings and defaults, and its examples."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from agentlightning.types.failure import (
    DEFAULT_FAILURE_TABLE,
    FAILURE_KINDS,
    FailureAction,
    read_failure_table,
)
from agl_schedules.quorum import METRICS
from agl_schedules.settings import Quorum

PAGE = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]


def said(action: FailureAction) -> str:
    """A default, as the page puts it."""
    return "retried, then left out" if action.retry else "left out"


def test_the_table_is_the_code() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| [^|]+ \| ([^|]+) \|$", PAGE, re.M)
    assert rows == [
        (kind, text, said(DEFAULT_FAILURE_TABLE.get(kind, FailureAction())))
        for kind, text in FAILURE_KINDS.items()
    ]
    assert all(action.reward is None for action in DEFAULT_FAILURE_TABLE.values())


def test_the_examples_are_read_as_the_page_says() -> None:
    training, quorum = BLOCKS[0]["training"], BLOCKS[1]["training"]["quorum"]
    table = read_failure_table(training["failure"])
    assert table["agent-raised"] == FailureAction(retry=True) and table["timeout"] == FailureAction(
        reward=-1.0
    )
    assert table["over-length"] == FailureAction(reward=0.0) and table["model-5xx"] == FailureAction()
    assert table["bad-reward"] == FailureAction(retry=True, reward=-1.0)
    assert Quorum.model_validate(quorum) == Quorum(k=6, deadline=30)
    assert all(f"`{name}`" in PAGE for name in (*METRICS, "quorum/waited_seconds"))
