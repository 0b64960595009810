"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("crewai >= 1.15.30, < 1.16",)
TESTED: Final = {"crewai": ("1.15.30",), "openai": ("2.54.0",)}
