"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("google-adk >= 1.39.1, < 3",)
TESTED: Final = {
    "google-adk": ("1.39.1", "2.13.0"),
    "litellm": ("1.83.14", "1.106.2"),
    "openai": ("2.24.0", "2.54.0"),
}
