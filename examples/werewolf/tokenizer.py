"""The small policy's tokenizer: byte-level BPE over boards, each word of the board as one token."""

from __future__ import annotations

from pathlib import Path

from agl_local.text.tokenizer import ChatTokenizer
from small_policy.reading import tokenizer_of
from werewolf.board import WORDS

TEMPLATE = Path(__file__).resolve().parent / "template.jinja"
ROLES = ("system\n", "user\n", "assistant\n")
BPE_SIZE = 300
LENGTH = 512


def build_tokenizer() -> ChatTokenizer:
    """The tokenizer with its chat template; the same every time."""
    return tokenizer_of(WORDS, BPE_SIZE, (*ROLES, *WORDS), TEMPLATE, LENGTH)
