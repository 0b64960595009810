"""The tables of docs/contributing/conformance.md about programs of other people, from the recorded result.

python bench/programs/table.py          rewrite them
python bench/programs/table.py --check  exit 1 if they would change
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from generated import ROOT, part, rewrite

PAGE = ROOT / "docs" / "contributing" / "conformance.md"
RESULT = ROOT / "bench" / "results" / "programs.json"
PLACE = part("programs", "bench/programs/table.py")
FIGURES = ("requests", "exact", "named")


def text(result: Mapping[str, Any]) -> str:
    """A line for each source of programs, and one for each program with refused requests."""
    programs: Mapping[str, Mapping[str, Any]] = result["of"]
    sources: dict[str, list[Mapping[str, Any]]] = {}
    for one in programs.values():
        sources.setdefault(_source(one), []).append(one)
    lines = [
        "| programs of | programs | requests | exact | of a named agent | refused |",
        "|---|---|---|---|---|---|",
    ]
    lines += [_line(source, found) for source, found in sources.items()]
    lines += [
        _line("**all**", list(programs.values())),
        "",
        "| refused | asks for | the gateway's code |",
        "|---|---|---|",
    ]
    for name, one in programs.items():
        if one["refused"]:
            codes = ", ".join(f"`{code}`" for code in one["refused"])
            lines.append(f"| {name} | {one['why']} | {codes} |")
    return "\n".join(lines)


def _source(one: Mapping[str, Any]) -> str:
    """The package that ships a program, or the framework that it was written here for."""
    package, found, _ = str(one["origin"]).partition(":")
    if found:
        return package.replace("==", " ")
    return " ".join(filter(None, (one["framework"], one.get("version")))) + ", written here"


def _line(source: str, programs: Sequence[Mapping[str, Any]]) -> str:
    figures = [sum(one[figure] for one in programs) for figure in FIGURES]
    refused = sum(sum(one["refused"].values()) for one in programs)
    return f"| {' | '.join(str(cell) for cell in (source, len(programs), *figures, refused))} |"


def main() -> int:
    """Write, or check."""
    return rewrite(PAGE, PLACE, RESULT, text)


if __name__ == "__main__":
    sys.exit(main())
