"""The distributions that this adapter instruments, and the versions it is tested with."""

from __future__ import annotations

from typing import Final

INSTRUMENTS: Final = ("langchain-core >= 1.2.21, < 2",)
TESTED: Final = {
    "langchain": ("1.2.15", "1.5.2"),
    "langchain-core": ("1.2.21", "1.8.3"),
    "langchain-openai": ("1.1.12", "1.7.4"),
    "openai": ("2.54.0", "3.57.0"),
}
