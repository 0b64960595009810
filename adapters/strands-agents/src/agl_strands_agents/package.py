"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("strands-agents >= 1.55, < 2",)
TESTED: Final = {"strands-agents": ("1.55.0", "1.62.0"), "openai": ("2.54.0",)}
