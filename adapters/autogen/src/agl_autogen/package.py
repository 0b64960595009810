"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("autogen-agentchat >= 0.7.5, < 0.8",)
CORE: Final = ("autogen-core >= 0.7.5, < 0.8",)
TESTED: Final = {"autogen-agentchat": ("0.7.5",), "openai": ("1.93.0", "2.54.0", "3.57.0")}
