"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("pydantic-ai-slim >= 2.31.1, < 3",)
TESTED: Final = {"pydantic-ai-slim": ("2.31.1", "2.68.0"), "openai": ("2.54.0", "3.57.0")}
