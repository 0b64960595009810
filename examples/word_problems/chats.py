"""The training chats for ``agl sft``: each problem of a split with its gold expression as the answer.

agl sft --policy smollm2 --data word_problems.chats:train --val word_problems.chats:val --output DIR
"""

from __future__ import annotations

from typing import Any

from word_problems.problems import Split, load
from word_problems.prompts import solved


def train() -> list[dict[str, Any]]:
    """Return the chats of the training split."""
    return chats("train")


def val() -> list[dict[str, Any]]:
    """Return the chats of the validation split."""
    return chats("val")


def chats(split: Split) -> list[dict[str, Any]]:
    """Return the chats of a split of SVAMP, as rows of OpenAI's fine-tuning format."""
    return [{"messages": solved(p["question"], p["expression"])} for p in load(split)]
