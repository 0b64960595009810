"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("openai-agents >= 0.20, < 0.25",)
TESTED: Final = {"openai-agents": ("0.20.0", "0.24.0"), "openai": ("2.54.0", "3.57.0")}
