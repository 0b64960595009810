"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("langgraph >= 1.1.5, < 2",)
TESTED: Final = {
    "langgraph": ("1.1.5", "1.2.22"),
    "langchain-core": ("1.2.21", "1.7.2"),
    "langchain-openai": ("1.1.12", "1.7.3"),
    "openai": ("2.54.0", "3.51.0"),
}
