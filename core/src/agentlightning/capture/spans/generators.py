"""Closing the stream that a wrapper reads, whatever end the wrapper itself comes to."""

from __future__ import annotations

from typing import Any


async def close_stream(source: Any) -> None:
    """Close an async generator. One that hangs inside an item, with nobody left to wait for it, refuses that:
    as without us, the collector closes it.
    """
    if not getattr(source, "ag_running", False):
        await source.aclose()
