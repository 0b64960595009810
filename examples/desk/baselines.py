"""What desks without a model earn on held-out tasks:
``PYTHONPATH=examples .venv/bin/python -m desk.baselines``.

They see what a model sees: the talk and what the tools said. The last line is one JSON object. Also the
scripts that a run measures through the real agent (``environment.headroom``): ``factory(tasks) -> script``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from desk.clerk import REFUSALS, reply, says
from desk.talk import Script, conduct
from desk.tasks import DAYS, RULES, STATUS, WHOSE, Task, tasks, wanted

COUNT = 288
"""Held-out tasks, those of ``cpu.yaml``."""
KEEPS = "keeps the rules"
DESKS: dict[str, Script] = {
    "changes nothing": lambda messages: says(REFUSALS[STATUS]),
    "does whatever is asked": partial(reply, slips=RULES),
    "knows the status alone": partial(reply, slips=(DAYS, WHOSE)),
    "knows all but the status": partial(reply, slips=(STATUS,)),
    "knows all but the 30 days": partial(reply, slips=(DAYS,)),
    "knows all but whose order it is": partial(reply, slips=(WHOSE,)),
    KEEPS: reply,
}
"""Desks without a model. All but the last have only a part of the policy."""


def rewards(desk: Script, given: Sequence[Task]) -> list[float]:
    """Return the reward of each task."""
    return [float(conduct(one, desk)[1] == wanted(one)) for one in given]


def strongest_part(given: Sequence[Task]) -> list[float]:
    """Return the reward of each task by the best desk that has a part of the policy."""
    return max((rewards(desk, given) for name, desk in DESKS.items() if name != KEEPS), key=sum)


def keeps_rules(given: Sequence[Task]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The desk that keeps the rules, as a policy."""
    return lambda body: reply(body["messages"])


def obliging(given: Sequence[Task]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The desk that does whatever is asked, as a policy."""
    return lambda body: reply(body["messages"], RULES)


def main() -> None:
    """Print the mean reward of each."""
    held_out = tasks(COUNT, held_out=True)
    means = {name: sum(rewards(desk, held_out)) / COUNT for name, desk in DESKS.items()}
    print(json.dumps({"tasks": COUNT, **{name: round(mean, 3) for name, mean in means.items()}}))


if __name__ == "__main__":
    main()
