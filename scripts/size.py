"""Measures core, and compares it with the ceiling of scripts/size.json, which may only fall.

python scripts/size.py            print the figures; the last line is JSON
python scripts/size.py --check    exit 1 if core is above its ceiling, or the ceiling has risen
python scripts/size.py --lower    write the figures of today as the ceiling

A line of code is a physical line that holds more than blanks, a comment or a docstring.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "core" / "src" / "agentlightning"
CEILING = "scripts/size.json"
KEPT = ("core_code", "core_files", "largest_file", "imports_of_training")
"""Figures that have a ceiling."""
SKIPPED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER
}  # fmt: skip
"""Tokens that make no line of code."""
IMPORTS = """
import sys
import agentlightning.train.session, agentlightning.train.trainer
from agentlightning.plugins.manager import build
build(discover=False)
print(sum(name.partition(".")[0] == "agentlightning" for name in sys.modules))
"""


def code_lines(text: str) -> int:
    """Return the lines of code of a module."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def measure() -> dict[str, float]:
    """Return the figures of the working tree. ``imports_of_training``: modules of core that it imports."""
    code = {path: code_lines(path.read_text(encoding="utf-8")) for path in CORE.rglob("*.py")}
    by_room: dict[str, list[int]] = {}
    for path, lines in code.items():
        first = path.relative_to(CORE).parts[0]
        by_room.setdefault("top level" if first.endswith(".py") else first, []).append(lines)
    for room, found in sorted(by_room.items(), key=lambda one: -sum(one[1])):
        print(f"{room:14} {sum(found):7,} lines of code in {len(found):3} files")
    asked = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, encoding="utf-8", check=True
    )
    return {
        "core_code": sum(code.values()),
        "core_files": len(code),
        "mean_code_per_file": round(sum(code.values()) / len(code), 1),
        "largest_file": max(code.values()),
        "imports_of_training": int(asked.stdout),
        "distributions": len([*ROOT.glob("*/pyproject.toml"), *ROOT.glob("*/*/pyproject.toml")]),
    }


def complaints(found: dict[str, float]) -> list[str]:
    """Say what is above its ceiling."""
    ceiling = json.loads((ROOT / CEILING).read_text(encoding="utf-8"))
    asked = subprocess.run(
        ["git", "show", f"HEAD:{CEILING}"], cwd=ROOT, capture_output=True, text=True, encoding="utf-8"
    )
    before = json.loads(asked.stdout) if asked.returncode == 0 else ceiling
    said = [
        f"{key} is {found[key]:,}, above its ceiling of {ceiling[key]:,}"
        for key in KEPT
        if found[key] > ceiling[key]
    ]
    said += [
        f"the ceiling of {key} rose to {ceiling[key]:,}: it may only fall"
        for key in KEPT
        if ceiling[key] > before[key]
    ]
    return said


def main() -> int:
    """Measure; check or lower the ceiling."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--lower", action="store_true")
    given = parser.parse_args()
    found = measure()
    if given.lower:
        (ROOT / CEILING).write_text(
            json.dumps({key: found[key] for key in KEPT}, indent=1) + "\n", encoding="utf-8"
        )
    print(json.dumps(found))
    said = complaints(found) if given.check else []
    for line in said:
        print(
            f"{line}; move what is not store, credit, gateway, runner or trainer into a plugin",
            file=sys.stderr,
        )
    return bool(said)


if __name__ == "__main__":
    raise SystemExit(main())
