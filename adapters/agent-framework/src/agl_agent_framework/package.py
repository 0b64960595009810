"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("agent-framework-core >= 1.22, < 2",)
TESTED: Final = {
    "agent-framework-core": ("1.22.0", "1.23.0"),
    "agent-framework-openai": ("1.17.0",),
    "agent-framework-orchestrations": ("1.4.0",),
    "openai": ("3.57.0",),
}
