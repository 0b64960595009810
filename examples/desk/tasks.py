"""Customers with a wish, generated: what the shop's database holds, and the changes that the policy wants.

:func:`broken` is the policy in code. Half of the wishes break exactly one of its rules and must be refused,
so that neither a desk that does nothing nor one that does whatever is asked earns more than half. Held-out
tasks have other seeds, and so other customers, orders and prices.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from desk.shop import Shop

Task = dict[str, Any]
TODAY, LIMIT = 100, 30
NAMES = (
    "anna", "ben", "carla", "david", "emma", "felix", "greta", "hugo", "ida", "jonas",
    "klara", "leo", "mia", "nora", "otto", "paul", "rosa", "sofia", "theo", "vera",
)  # fmt: skip
ITEMS = ("lamp", "chair", "kettle", "book", "scarf", "clock")
LETTERS = "ABCDEFGHKLMNPRSTUVWXYZ"
WISHES = ("cancel", "refund", "locker")
GRANTED, STATUS, DAYS, WHOSE = "granted", "status", "days", "whose"
RULES = (STATUS, DAYS, WHOSE)
"""What a wish can break: the order's status, the 30 days of a refund, whose order it is."""
KINDS = (
    *((wish, GRANTED) for wish in WISHES * 3),
    *((wish, STATUS) for wish in WISHES),
    *(("refund", DAYS) for _ in WISHES),
    *((wish, WHOSE) for wish in ("cancel", "locker", "cancel")),
)
"""Wish and rule that it breaks, of the tasks in turn: half are granted, a sixth breaks each rule. Nobody asks
for money back for an order of somebody else: the desk could not look up how much.
"""
HELD_OUT = 1_000_000
"""Seeds from here on are those of held-out tasks; there are fewer in training."""


def tasks(count: int, held_out: bool = False) -> list[Task]:
    """Return the first tasks of a split."""
    return [task(number + (HELD_OUT if held_out else 0)) for number in range(count)]


def task(seed: int) -> Task:
    """Return the task of a seed."""
    chosen = random.Random(f"desk {seed}")
    wish, rule = KINDS[seed % len(KINDS)]
    names = chosen.sample(NAMES, 2)
    mail, other = (f"{name}@example.org" for name in names)
    locker = _locker(chosen)
    ids = [f"{letter}{chosen.randrange(10, 100)}" for letter in chosen.sample(LETTERS, 5)]
    while True:
        orders = [_order(chosen, one, mail if place < 3 else other) for place, one in enumerate(ids)]
        order = chosen.choice(orders[3:] if rule == WHOSE else orders[:3])
        breaks = [] if rule == GRANTED else [rule]
        if broken(order, wish, mail) == breaks and order["locker"] != locker:
            break
    return {
        "id": f"desk-{seed}",
        "kind": f"{wish}, {rule}",
        "customer": {
            "name": names[0].title(),
            "email": mail,
            "wish": wish,
            "order": order["id"],
            "locker": locker,
        },
        "orders": orders,
        "gold": [] if breaks else [list(change(order, wish, locker))],
    }


def _order(chosen: random.Random, order_id: str, mail: str) -> dict[str, Any]:
    status = chosen.choice(("open", "shipped", "delivered", "delivered"))
    return {
        "id": order_id,
        "email": mail,
        "item": chosen.choice(ITEMS),
        "cents": 100 * chosen.randrange(5, 90),
        "status": status,
        "delivered": TODAY - chosen.randrange(1, 2 * LIMIT) if status == "delivered" else None,
        "locker": _locker(chosen),
    }


def _locker(chosen: random.Random) -> int:
    return chosen.randrange(100, 1000)


def broken(order: Mapping[str, Any], wish: str, email: str) -> list[str]:
    """Return the rules that a wish of the owner of an email address breaks; none: it is granted."""
    rules = [] if order["email"] == email else [WHOSE]
    if order["status"] != ("delivered" if wish == "refund" else "open"):
        rules.append(STATUS)
    elif wish == "refund" and TODAY - order["delivered"] > LIMIT:
        rules.append(DAYS)
    return rules


def change(order: Mapping[str, Any], wish: str, locker: int) -> tuple[str, dict[str, Any]]:
    """Return the call that a wish asks for: a tool and its arguments."""
    if wish == "refund":
        return "refund", {"order_id": order["id"], "cents": order["cents"]}
    if wish == "cancel":
        return "cancel", {"order_id": order["id"]}
    return "change_locker", {"order_id": order["id"], "locker": locker}


def wanted(given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the state that the policy wants the database of a task to have at the end."""
    return after(given["orders"], given["gold"])


def after(orders: Sequence[Mapping[str, Any]], changes: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Return the state of a database of ``orders`` after changes."""
    shop = Shop(orders)
    try:
        for name, arguments in changes:
            shop.call(name, json.dumps(arguments))
        return shop.state()
    finally:
        shop.close()


def grade(given: Mapping[str, Any], shop: Shop) -> float:
    """Return 1.0 if the whole database is as the policy wants it, else 0.0."""
    return float(shop.state() == wanted(given))
