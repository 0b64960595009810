"""Customers with a wish, generated: what the shop's database holds, and the changes that the policy wants.

:func:`granted` is the policy in code. Every other wish must be refused, so that neither a desk that does
nothing nor one that does whatever is asked earns more than half. Held-out tasks have other seeds, and so
other customers, orders and prices.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from desk.shop import Shop

Task = dict[str, Any]
TODAY, LIMIT = 100, 30
NAMES = ("anna", "ben", "clara", "david", "emma", "felix", "greta", "hugo")
ITEMS = ("lamp", "chair", "kettle", "book", "scarf", "clock")
STREETS = ("Hill Road", "Mill Lane", "Park Street", "Lake View")
WISHES = ("cancel", "refund", "address")
HELD_OUT = 1_000_000
"""Seeds from here on are those of held-out tasks."""


def tasks(count: int, held_out: bool = False) -> list[Task]:
    """Return the first tasks of a split."""
    return [task(number + (HELD_OUT if held_out else 0)) for number in range(count)]


def task(seed: int) -> Task:
    """Return the task of a seed."""
    chosen = random.Random(f"desk {seed}")
    name = chosen.choice(NAMES)
    mail = f"{name}{chosen.randrange(10, 100)}@example.org"
    wish, fair = WISHES[seed % len(WISHES)], seed // len(WISHES) % 2 == 0
    address = f"{chosen.randrange(1, 90)} {chosen.choice(STREETS)}"
    while True:
        orders = [_order(chosen, number, mail) for number in range(3)]
        order = chosen.choice(orders)
        if bool(granted(order, wish, address)) == fair:
            break
    orders.append(_order(chosen, 3, f"other{chosen.randrange(100)}@example.org"))
    customer = {"name": name.title(), "email": mail, "wish": wish, "order": order["id"], "address": address}
    return {
        "id": f"desk-{seed}",
        "customer": customer,
        "orders": orders,
        "gold": granted(order, wish, address),
    }


def _order(chosen: random.Random, number: int, mail: str) -> dict[str, Any]:
    status = chosen.choice(("open", "shipped", "delivered", "delivered"))
    return {
        "id": f"{'ABCD'[number]}{chosen.randrange(100, 1000)}",
        "email": mail,
        "item": chosen.choice(ITEMS),
        "cents": 100 * chosen.randrange(5, 90),
        "status": status,
        "delivered": TODAY - chosen.randrange(1, 2 * LIMIT) if status == "delivered" else None,
        "address": f"{chosen.randrange(1, 90)} {chosen.choice(STREETS)}",
    }


def granted(order: Mapping[str, Any], wish: str, address: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that the policy wants for a wish; none: it must be refused."""
    recent = order["status"] == "delivered" and TODAY - order["delivered"] <= LIMIT
    if wish == "refund":
        return [("refund", {"order_id": order["id"], "cents": order["cents"]})] if recent else []
    if order["status"] != "open":
        return []
    if wish == "cancel":
        return [("cancel", {"order_id": order["id"]})]
    return [("change_address", {"order_id": order["id"], "address": address})]


def grade(given: Mapping[str, Any], shop: Shop) -> float:
    """Return 1.0 if the database is as the task's gold calls leave it, else 0.0."""
    right = Shop(given["orders"])
    try:
        for name, arguments in given["gold"]:
            right.call(name, json.dumps(arguments))
        return float(shop.state() == right.state())
    finally:
        right.close()
