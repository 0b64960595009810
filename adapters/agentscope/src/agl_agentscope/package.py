"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

_UNTESTED = ", ".join(f"!= 2.0.{patch}.*" for patch in range(6))
INSTRUMENTS: Final = (f"agentscope >= 1.0.10, < 2.1, {_UNTESTED}",)
TESTED: Final = {
    "agentscope": ("1.0.10", "1.0.21", "2.0.6", "2.0.11"),
    "openai": ("2.54.0", "3.57.0"),
}
"""AgentScope 1.0 with openai 2.54, which it needs below 3; AgentScope 2 with 3.57."""
