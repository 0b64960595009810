"""Real questions of Spider: which are trained on, which choose settings, and which are the test.

``train``: about 70 training databases; ``select``: about 12 others of the training set, for the choices of
fine-tuning; ``test``: the development questions, about 13 databases on which nothing was chosen.
``router.datasets`` parts the databases of the first two. Training by results parts ``select`` again:
``practice``, 7 databases of which fine-tuning has seen nothing, is trained on, and ``choice``, the other 5,
chooses its settings.
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

SETS = {
    "train": "tuning:train",
    "select": "tuning:heldout",
    "practice": "tuning:heldout",
    "choice": "tuning:heldout",
    "test": "dev",
}
CHOICE = {"architecture", "department_management", "election", "mountain_photos", "phone_1"}
"""The databases of ``choice``."""
SOLVED = Path(__file__).resolve().parent / "solved.json"
"""How often the fine-tuned policy solved questions of ``train`` and ``practice``: id → [solved, tried]
(``solved.py``).
"""


def load(
    spec: str, limit: int | None = None, solved: Sequence[float] | None = None, seed: int = 0
) -> list[Question]:
    """Return the questions of a set, or of several, as in ``train+practice``.

    ``limit``: that many, drawn at random by ``seed``. ``solved``: only those whose solve rate was measured
    and is at least the first and at most the second number. Of ``train``, questions whose gold query needs a
    name that the schema does not show are left out.
    """
    found = [question for part in spec.split("+") for question in _set(part)]
    if solved is not None:
        low, high = solved
        counts = json.loads(SOLVED.read_text(encoding="utf-8"))
        rates = {name: right / tried for name, (right, tried) in counts.items()}
        found = [q for q in found if q["id"] in rates and low <= rates[q["id"]] <= high]
    if limit is not None and limit < len(found):
        found = random.Random(f"spider:{spec}:{seed}").sample(found, limit)
    return found


def _set(spec: str) -> list[Question]:
    if spec not in SETS:
        raise DatasetError(f"unknown set {spec!r}: choose from {', '.join(SETS)}")
    found = questions(SETS[spec])
    if spec == "train":
        return [q for q in found if is_shown(q)]
    if spec in ("practice", "choice"):
        return [q for q in found if (q["db_id"] in CHOICE) == (spec == "choice")]
    return found
