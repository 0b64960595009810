"""The reward: 1.0 if the final answer is the gold answer, else 0.0.

Case, accents, a full stop at the end, quotation marks and the article "the" do not count; all else does. An
answer of two alternatives is no answer, nor is a sentence around it: the agent is asked for the fact alone.
"""

from __future__ import annotations

import re
import unicodedata


def normalised(text: str) -> str:
    """What is compared."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    plain = "".join(char for char in plain if not unicodedata.combining(char))
    plain = " ".join(plain.replace("’", "'").split()).strip("\"'`* ").rstrip(". ")
    return re.sub(r"^the ", "", plain)


def grade(answer: str | None, gold: str) -> float:
    """Return the reward of an answer."""
    return float(normalised(answer or "") == normalised(gold))
