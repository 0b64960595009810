"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("smolagents >= 1.24, < 2",)
TESTED: Final = {"smolagents": ("1.24.0", "1.26.0"), "openai": ("2.54.0",)}
