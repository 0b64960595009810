"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("dspy >= 3.0.4, < 4",)
TESTED: Final = {
    "dspy": ("3.0.4", "3.4.1"),
    "litellm": ("1.83.14", "1.106.2"),
    "openai": ("2.24.0", "2.54.0"),
}
