"""Credit reads top to bottom: ``assign.py`` calls each station once on the way of a rollout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

from core.credit.builders import make_record, one_call

from agentlightning.credit import assign as credit
from agentlightning.credit.assign import StepCredit, assign
from agentlightning.recipes import GRPO
from agentlightning.types import Batch, Record, Reward

ROOM = Path(sys.modules[StepCredit.__module__].__file__ or "").parent
PER_ROLLOUT = ["verdicts", "rollout_reward", "rewards", "eligibility", "rules"]
ROWS = ["forest", "rows", "accounts"]


def stations(work: Callable[..., Any], *given: Any) -> tuple[Any, list[str]]:
    """Do some work, and return with its result the files of the room that ``assign.py`` called, in order."""
    seen: list[str] = []

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        above = frame.f_back
        if event == "call" and above is not None and above.f_code.co_filename == str(ROOM / "assign.py"):
            called = Path(frame.f_code.co_filename)
            if called.parent == ROOM and called.name != "assign.py":
                seen.append(called.stem)

    sys.setprofile(watch)
    try:
        result = work(*given)
    finally:
        sys.setprofile(None)
    return result, [name for name, _ in groupby(seen)]


def records() -> list[Record]:
    """Two rollouts of one group, two calls each, with different rewards."""
    return [
        make_record(f"r{n}", [one_call(f"r{n}", sequence=k) for k in range(2)], rewards=[Reward(value=n)])
        for n in (0.0, 1.0)
    ]


def test_a_step_passes_each_station_in_order() -> None:
    credit_of_step, checked = stations(StepCredit, GRPO())
    assert checked == ["checks"]
    given = records()
    for record in given:
        assert stations(credit_of_step.survey, [record])[1] == PER_ROLLOUT
    _, added = stations(credit_of_step.add, given)
    assert added == ["baselines", *ROWS, *ROWS]
    made, last = stations(credit_of_step.batch)
    assert last == ["rows", "accounts"]
    assert isinstance(made, Batch) and made == assign(records(), GRPO()) == credit(records(), GRPO())
