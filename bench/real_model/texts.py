"""Prompts of exact lengths: pieces of real word problems, none twice."""

from __future__ import annotations

import random
from pathlib import Path

from agentlightning.types.base import read_json_lines
from agl_local.text.tokenizer import ChatTokenizer

DATA = Path(__file__).resolve().parents[2] / "examples" / "calc_x" / "data"


class Texts:
    """Token ids of the bundled word problems, cut at random places that ``seed`` decides."""

    def __init__(self, folder: Path, seed: int) -> None:
        rows = [row for name in ("gsm8k", "svamp") for row in read_json_lines(DATA / f"{name}.jsonl")]
        text = "\n".join(" ".join(v for v in row.values() if isinstance(v, str)) for row in rows)
        self._ids = ChatTokenizer.load(folder).encode(text)
        self._random = random.Random(seed)
        self._used: set[int] = set()

    def piece(self, length: int) -> list[int]:
        """Return the next ``length`` token ids; no other piece begins at the same place."""
        while True:
            at = self._random.randrange(len(self._ids) - length)
            if at not in self._used:
                self._used.add(at)
                return self._ids[at : at + length]

    def sign(self) -> float:
        """Return an advantage, 1 or −1."""
        return self._random.choice((1.0, -1.0))
