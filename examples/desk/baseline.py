"""What desks without a model earn on held-out tasks: ``PYTHONPATH=examples python -m desk.baseline``.

``nothing`` changes nothing, ``obliging`` does whatever is asked, ``policy`` keeps the rules. The last line is
one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

from desk.shop import Shop
from desk.tasks import Task, grade, granted, tasks

Calls = list[tuple[str, dict[str, Any]]]
COUNT = 300


def obliging(task: Task) -> Calls:
    """Do what is asked, whatever the policy says."""
    wanted = task["customer"]
    order = next(one for one in task["orders"] if one["id"] == wanted["order"])
    status = "delivered" if wanted["wish"] == "refund" else "open"
    return granted({**order, "status": status, "delivered": 99}, wanted["wish"], wanted["address"])


DESKS: dict[str, Callable[[Task], Calls]] = {
    "nothing": lambda task: [],
    "obliging": obliging,
    "policy": lambda task: list(task["gold"]),
}


def earned(desk: Callable[[Task], Calls], given: Task) -> float:
    """Return the reward of one task."""
    with closing(Shop(given["orders"])) as shop:
        for name, arguments in desk(given):
            shop.call(name, json.dumps(arguments))
        return grade(given, shop)


def main() -> None:
    """Print the mean reward of each."""
    held_out = tasks(COUNT, held_out=True)
    means = {name: sum(earned(desk, one) for one in held_out) / COUNT for name, desk in DESKS.items()}
    print(json.dumps({"tasks": COUNT, **{name: round(mean, 3) for name, mean in means.items()}}))


if __name__ == "__main__":
    main()
