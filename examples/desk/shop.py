"""The shop's database, of which each rollout has its own in memory, and the desk's tools over it.

The tools do what they are told: the policy is the agent's to keep. Invariant: two databases of one task that
saw the same changes have the same state.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = """
CREATE TABLE orders (
    id TEXT PRIMARY KEY, email TEXT, item TEXT, cents INTEGER, status TEXT, delivered INTEGER, locker INTEGER,
    refunded INTEGER DEFAULT 0
);
"""
COLUMNS = ("id", "email", "item", "cents", "status", "delivered", "locker")
NO_ORDER = "error: there is no such order"
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
ORDER = {"order_id": TEXT}
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "look_up": ("Show an order of an email address.", {"email": TEXT, **ORDER}),
    "cancel": ("Cancel an order.", ORDER),
    "refund": ("Pay cents of an order back.", {**ORDER, "cents": NUMBER}),
    "change_locker": ("Change the parcel locker of an order.", {**ORDER, "locker": NUMBER}),
}
"""Tool → what it does, and its parameters, all of which are required."""
SCHEMAS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {"type": "object", "properties": given, "required": list(given)},
        },
    }
    for name, (about, given) in TOOLS.items()
]


class Shop:
    """The database with ``orders``; close it."""

    def __init__(self, orders: Sequence[Mapping[str, Any]]) -> None:
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(SCHEMA)
        marks = ", ".join(f":{name}" for name in COLUMNS)
        self._db.executemany(f"INSERT INTO orders ({', '.join(COLUMNS)}) VALUES ({marks})", orders)

    def close(self) -> None:
        """Close the database, and with it all that was changed."""
        self._db.close()

    def state(self) -> list[tuple[Any, ...]]:
        """Return every row, by which a rollout is graded."""
        return [tuple(row) for row in self._db.execute("SELECT * FROM orders ORDER BY id")]

    def call(self, name: str, arguments: str) -> str:
        """Run a tool that a model asked for; a wrong call is answered with what is wrong."""
        try:
            given = json.loads(arguments)
            if name not in TOOLS or given.keys() != TOOLS[name][1].keys():
                wanted = (
                    f"{name}({', '.join(TOOLS[name][1])})" if name in TOOLS else f"one of {', '.join(TOOLS)}"
                )
                return f"error: call {wanted}"
            return str(getattr(self, f"_{name}")(**given))
        except (ValueError, AttributeError, sqlite3.Error) as error:
            return f"error: {error}"

    def _look_up(self, email: str, order_id: str) -> str:
        asked = "SELECT * FROM orders WHERE email = ? AND id = ?"
        row = self._db.execute(asked, (email, order_id)).fetchone()
        return json.dumps(dict(row)) if row else NO_ORDER

    def _cancel(self, order_id: str) -> str:
        return self._changed("UPDATE orders SET status = 'cancelled' WHERE id = ?", order_id)

    def _refund(self, order_id: str, cents: int) -> str:
        return self._changed("UPDATE orders SET refunded = refunded + ? WHERE id = ?", cents, order_id)

    def _change_locker(self, order_id: str, locker: int) -> str:
        return self._changed("UPDATE orders SET locker = ? WHERE id = ?", locker, order_id)

    def _changed(self, statement: str, *values: Any) -> str:
        return "done" if self._db.execute(statement, values).rowcount else NO_ORDER
