"""The table of docs/structured.md, from the recorded result.

python bench/structured/table.py          rewrite it
python bench/structured/table.py --check  exit 1 if it would change
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from generated import ROOT, part, rewrite

PAGE = ROOT / "docs" / "structured.md"
RESULT = ROOT / "bench" / "results" / "structured.json"
PLACE = part("cells", "bench/structured/table.py")


def text(result: Mapping[str, Any]) -> str:
    """A line for each framework, a column for each feature; one word where all engines agree."""
    rows: Mapping[str, Mapping[str, Mapping[str, str]]] = result["rows"]
    names = list(dict.fromkeys(name for engine in rows.values() for name in engine))
    features = list(dict.fromkeys(f for engine in rows.values() for row in engine.values() for f in row))
    lines = [f"| | {' | '.join(features)} |", f"|---|{'---|' * len(features)}"]
    for name in names:
        cells = [
            _cell({engine: of[name].get(feature) for engine, of in rows.items()}) for feature in features
        ]
        lines.append(f"| {name} {result['versions'][name]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(words: Mapping[str, str | None]) -> str:
    """What became of a cell; – if the framework cannot ask for it."""
    if len(found := set(words.values())) == 1:
        return found.pop() or "–"
    return ", ".join(f"{engine}: {word or '–'}" for engine, word in words.items())


def main() -> int:
    """Write, or check."""
    return rewrite(PAGE, PLACE, RESULT, text)


if __name__ == "__main__":
    sys.exit(main())
