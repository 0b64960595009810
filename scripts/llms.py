"""Writes docs/llms.txt, the site as a language model reads it; ``--check`` fails if it is stale.

    python scripts/llms.py

In the form of llmstxt.org: a title, a quote, and sections of links with a line each. Sections and titles are
those of the navigation, lines the first sentence of each page. A page that is not there is an error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "llms.txt"
NOTEBOOKS = ROOT / "examples" / "notebooks"
sys.path.insert(0, str(ROOT / "scripts" / "site"))
FROM_ROOT = {
    "index.md": "README.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Page → the file of the repository's root that it is."""
APART = (("Contributing",), ("Explanation",))
"""Parts of the navigation that who trains an agent can leave out."""
LEAST = 20
"""Characters of a sentence; a shorter paragraph is none, and a shorter sentence goes with the next."""
HEAD = """\
# Agent Lightning

> Trains the model inside an agent that is already written, in any framework and language, by reinforcement
> learning from rewards; on a laptop's CPU or on GPUs. The commands begin with `agl`; in Python:
> `import agentlightning as agl`.

An agent is a function `(task, llm) -> reward`, or a program. `agl init my-agent` writes a project that trains
as it is, `agl doctor` checks it, `agl train --config config.yaml` trains it. Links are pages of this site;
`X.html` is `docs/X.md` in the repository. Coding agents begin with the [skill](skill/SKILL.html).
"""


def entries(nav: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Section, title and place of every page of a navigation, translations left out."""
    for entry in nav:
        ((title, below),) = entry.items()
        if isinstance(below, list):
            yield from entries(below, (*path, title))
        elif not below.endswith(".zh.md"):
            yield path, title, below


def content(place: str) -> str:
    """The Markdown of a page. Raise ``FileNotFoundError`` for one that is not there."""
    file = ROOT / FROM_ROOT[place] if place in FROM_ROOT else ROOT / "docs" / place
    if place.startswith("reference/") and not file.exists():
        import reference

        if place in reference.PAGES:
            return reference.PAGES[place]()
    return file.read_text(encoding="utf-8")


def first_sentence(markdown: str) -> str:
    """The first sentence of a page's text, as plain words; empty if it has none before its first section."""
    if front := re.match(r"---\n(.*?)^---\n", markdown, flags=re.M | re.S):
        return first_sentence(yaml.safe_load(front[1])["description"])
    text = re.sub(r"^```.*?^```$|<!--.*?-->", "", markdown, flags=re.M | re.S)
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        if not line or re.match(r"#|\||!\[|[-*] |\d+\. |<", line):
            continue
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line).replace("**", "")
        if len(plain) < LEAST:
            continue
        words = re.sub(r"`[^`]*`", lambda code: "X" * len(code[0]), plain)  # a stop in code ends nothing
        ends = [found.end() for found in re.finditer(r"[.:](?= |$)", words)]
        end = next((one for one in ends if one >= LEAST), len(plain))
        return plain[:end].rstrip(" :.") + "."
    return ""


def _opening(notebook: Path) -> str:
    """The first cell of a notebook."""
    return "".join(json.loads(notebook.read_text(encoding="utf-8"))["cells"][0]["source"])


def text() -> str:
    """The whole file."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    sections: dict[str, list[str]] = {}
    for path, title, place in entries(nav):
        name = "Optional" if path[:1] in APART else " / ".join(path) or "Start"
        told = first_sentence(content(place))
        line = f"- [{title}]({place.removesuffix('.md')}.html)"
        sections.setdefault(name, []).append(f"{line}: {told}" if told else line)
    last = sections.pop("Optional", [])
    shown = [
        f"- `{one.relative_to(ROOT)}`: {first_sentence(_opening(one))}"
        for one in sorted(NOTEBOOKS.glob("*.ipynb"))
    ]
    sections |= {"Notebooks, in the repository": shown, "Optional": last}
    return HEAD + "".join(
        "\n".join(["", f"## {name}", "", *lines, ""]) for name, lines in sections.items() if lines
    )


def main() -> int:
    """Write, or compare."""
    wanted = text()
    if "--check" not in sys.argv:
        FILE.write_text(wanted, encoding="utf-8")
    elif not FILE.exists() or FILE.read_text(encoding="utf-8") != wanted:
        print("docs/llms.txt: stale, run python scripts/llms.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
