"""What this adapter instruments, and with which versions it is tested."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("agentscope >= 1.0.21, < 2.1",)
TESTED: Final = {
    "agentscope": ("1.0.21", "2.0.10"),
    "openai": ("2.54.0", "3.51.0"),
}
"""AgentScope 1.0.21 runs with openai below 3 only, 2.0.10 was run with 3.51."""
