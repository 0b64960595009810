"""Ids that grow with time, so that their index grows at one end.

Random ids make every new row touch another page of each index, and a commit writes whole pages.
"""

from __future__ import annotations

import secrets
import time


def time_ordered_id(prefix: str) -> str:
    """A fresh id, e.g. ``ro-019…``: 44 bits of milliseconds since the epoch, 48 random bits."""
    return f"{prefix}-{time.time_ns() // 1_000_000:011x}{secrets.token_hex(6)}"
