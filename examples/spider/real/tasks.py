"""Real questions of Spider: which are trained on, which choose settings, and which are the test.

``train``: about 70 training databases; ``select``: about 12 others of the training set, for every choice of
settings; ``test``: the development questions, about 13 databases on which nothing was chosen.
``router.datasets`` parts the databases of the first two.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from agentlightning.algorithms.tasks import DatasetError
from router.datasets import questions
from spider.questions import Question
from spider.real.chats import is_shown

SETS = {"train": "tuning:train", "select": "tuning:heldout", "test": "dev"}
SOLVED = Path(__file__).resolve().parent / "solved.json"
"""How often the fine-tuned policy solved questions of ``train``: id → [solved, tried] (``solved.py``)."""


def load(
    spec: str, limit: int | None = None, solved: Sequence[float] | None = None, seed: int = 0
) -> list[Question]:
    """Return the questions of a set.

    ``limit``: that many, drawn at random by ``seed``. ``solved``: only those whose solve rate was measured
    and is at least the first and at most the second number. Of ``train``, questions whose gold query needs a
    name that the schema does not show are left out.
    """
    if spec not in SETS:
        raise DatasetError(f"unknown set {spec!r}: choose from {', '.join(SETS)}")
    found = [q for q in questions(SETS[spec]) if spec != "train" or is_shown(q)]
    if solved is not None:
        low, high = solved
        counts = json.loads(SOLVED.read_text(encoding="utf-8"))
        rates = {name: right / tried for name, (right, tried) in counts.items()}
        found = [q for q in found if q["id"] in rates and low <= rates[q["id"]] <= high]
    if limit is not None and limit < len(found):
        found = random.Random(f"spider:{spec}:{seed}").sample(found, limit)
    return found
