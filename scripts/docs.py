"""Writes the parts of the documentation that come from code; ``--check`` fails if they are stale.

python scripts/docs.py          rewrite docs/hooks.md
python scripts/docs.py --check  exit 1 if it would change
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from agentlightning import hookspecs, plugins

ROOT = Path(__file__).resolve().parents[1]


def hooks() -> str:
    """The page of hooks: signature, contract, and which built-in uses each."""
    loaded = plugins.build(discover=False)
    registration, moments = [], []
    for name, function in vars(hookspecs).items():
        if not name.startswith("agl_"):
            continue
        signature = inspect.signature(function)
        text = " ".join((inspect.getdoc(function) or "").split())
        arguments = ", ".join(f"{p.name}: {p.annotation}" for p in signature.parameters.values())
        users = ", ".join(i.plugin_name for i in getattr(loaded.manager.hook, name).get_hookimpls())
        row = f"| `{name}({arguments})` | {text} |"
        if signature.return_annotation in (None, "None"):
            moments.append(row)
        else:
            registration.append(f"{row[:-2]} | `{signature.return_annotation}` | {users or 'plugins'} |")
    return "\n".join(
        [
            "# Hooks",
            "",
            "Generated from `agentlightning/hookspecs.py` by `python scripts/docs.py`.",
            "",
            "A plugin is a module or object whose functions carry `@agentlightning.hookimpl`; an",
            "installed package names it in the entry-point group `agentlightning`. An implementation may",
            "take any subset of the named arguments. `AGL_PLUGINS=a,b` chooses entry points,",
            "`AGL_TRACE_HOOKS=1` prints each moment, and `agl plugins` lists what is loaded.",
            "",
            "## Registration: run once, when plugins are loaded",
            "",
            "| hook | contract | returns | built-in user |",
            "|---|---|---|---|",
            *registration,
            "",
            "## Moments: after the fact, off the hot path; an error is counted and logged, never fatal",
            "",
            "The trackers listen to them: terminal, files, plot, and `events`, which writes each moment.",
            "",
            "| hook | contract |",
            "|---|---|",
            *moments,
            "",
        ]
    )


def main() -> int:
    target = ROOT / "docs" / "hooks.md"
    text = hooks()
    if "--check" in sys.argv:
        if not target.exists() or target.read_text() != text:
            print(f"{target.relative_to(ROOT)} is stale: run python scripts/docs.py", file=sys.stderr)
            return 1
        return 0
    target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
