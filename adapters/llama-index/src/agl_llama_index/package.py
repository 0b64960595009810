"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("llama-index-core >= 0.13.6, < 0.15",)
TESTED: Final = {"llama-index-core": ("0.13.6", "0.14.25"), "openai": ("1.109.1", "2.54.0")}
