"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("tinyagents >= 1, < 2",)
TESTED: Final = {"tinyagents": ("1.0",), "openai": ("2.54.0", "3.51.0")}
