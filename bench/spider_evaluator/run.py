"""Two evaluators, one answer: on every gold query, every pair of paraphrases' golds, and mutated queries.

    python bench/spider_evaluator/run.py [--data FOLDER] [--mutations N] [--seed N]

``FOLDER`` holds ``*.jsonl`` files of questions beside ``database/NAME.sqlite``; by default it is the
example's own data. The example's evaluator (``spider.sql.matching``) is compared with ``second.py``, which
shares no code with it. The last line is one JSON object; the exit status is 1 on any disagreement. To keep
it: ``python bench/record.py spider_evaluator -- python bench/spider_evaluator/run.py …``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from itertools import combinations, islice
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import mutations  # noqa: E402
import second  # noqa: E402

from spider.datasets import SAMPLES, load  # noqa: E402
from spider.sql.matching import GoldError, match  # noqa: E402
from spider.sql.tokens import orders  # noqa: E402


class Comparison:
    """Asks both evaluators and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tried: Counter[str] = Counter()
        self.wrong: list[list[str]] = []
        """Gold queries that are not right, or do not run."""
        self.differ: list[list[str]] = []

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.sqlite"

    def compare(self, kind: str, name: str, gold: str, other: str) -> None:
        """Note whether ``other`` answers as ``gold``, and whether the evaluators say the same."""
        try:
            ours = match(gold, other, [self.path(name)]).match
        except GoldError as error:
            self.wrong.append([name, str(error)])
            return
        self.tried[kind] += 1
        self.tried[f"{kind}_same_answer"] += ours
        if kind == "gold" and not ours:
            self.wrong.append([name, gold])
        if ours is not second.agrees(gold, other, str(self.path(name))):
            self.differ.append([kind, name, gold, other])

    def all(self, golds: list[tuple[str, str]], mutated: int, seed: int) -> None:
        """Golds with themselves, golds with other golds (real SQL, mostly wrong answers), and mutations."""
        for name, gold in golds:
            self.compare("gold", name, gold, gold)
        names = sorted({name for name, _ in golds})
        for name in names:
            for one, other in islice(combinations([query for n, query in golds if n == name], 2), 200):
                self.compare("pair", name, one, other)
        columns = {name: mutations.columns_of(str(self.path(name))) for name in names}
        for name, gold, changed in islice(mutations.stream(golds, columns, seed), mutated):
            self.compare("mutated", name, gold, changed)


def main() -> int:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(prog="run.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, default=SAMPLES)
    parser.add_argument("--mutations", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    questions = load(f"spider:{given.data}")
    golds = sorted({(question["db_id"], question["query"]) for question in questions})
    comparison = Comparison(given.data / "database")
    began = time.perf_counter()
    comparison.all(golds, given.mutations, given.seed)
    result = {
        "questions": len(questions),
        "databases": len({name for name, _ in golds}),
        **comparison.tried,
        "gold_wrong": len(comparison.wrong),
        "disagreements": len(comparison.differ),
        "order_by_only_inside": sum("order by" in gold.lower() and not orders(gold) for _, gold in golds),
        "seed": given.seed,
        "seconds": round(time.perf_counter() - began, 1),
    }
    for line in [*comparison.wrong, *comparison.differ][:20]:
        print(line, file=sys.stderr)
    print(json.dumps(result))
    return 1 if comparison.wrong or comparison.differ else 0


if __name__ == "__main__":
    sys.exit(main())
