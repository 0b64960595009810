"""Begins an adapter: copies ``agl-tinyagents``, which instruments an imaginary framework, under other names.

    python examples/adapter_template/new.py pydantic-ai --module pydantic_ai --title "Pydantic AI"

writes ``./pydantic-ai``: the distribution ``agl-pydantic-ai`` with the package ``agl_pydantic_ai``, the
adapter ``pydantic-ai`` and the class ``PydanticAIInstrumentor``. What is left is what only you know: the
framework's versions, its doors, and how the contract's agents are built with it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

TEMPLATE = Path(__file__).resolve().parent / "agl-tinyagents"
MODULE = re.compile(r'(from |import |framework="|if "|when `)tinyagents\b')
"""Where the template's word is the framework's import name; elsewhere it is the adapter's name."""
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def class_name(title: str) -> str:
    """The framework's name as the beginning of a class's: ``Google ADK`` is ``GoogleADK``."""
    return "".join(word[0].upper() + word[1:] for word in re.findall(r"[^\W_]+", title))


def renamed(text: str, name: str, module: str, title: str) -> str:
    """``text`` with the imaginary framework's names replaced."""
    text = MODULE.sub(lambda match: match[1] + module, text)
    text = text.replace("agl_tinyagents", "agl_" + name.replace("-", "_"))
    text = text.replace("TinyAgentsInstrumentor", class_name(title) + "Instrumentor")
    text = text.replace("TestTinyAgents", "Test" + class_name(title))
    return text.replace("TinyAgents", title).replace("tinyagents", name)


def write(folder: Path, name: str, module: str, title: str) -> list[Path]:
    """The files of the new adapter, written into ``folder``."""
    written = []
    for source in sorted(TEMPLATE.rglob("*")):
        place = source.relative_to(TEMPLATE)
        if source.is_dir() or "__pycache__" in place.parts or place.parts[0].startswith("."):
            continue
        target = folder / renamed(str(place), name, module, title)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(renamed(source.read_text(encoding="utf-8"), name, module, title), encoding="utf-8")
        written.append(target)
    return written


def main() -> int:
    """Read the command line, refuse what cannot work, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="the adapter's name, as its framework's distribution is called")
    parser.add_argument("--module", help="the framework's import name (default: the name, with underscores)")
    parser.add_argument(
        "--title", help="the framework's name in prose, and, joined, in class names (default: the name)"
    )
    parser.add_argument("--into", type=Path, default=Path("."), help="the folder that gets the new folder")
    given = parser.parse_args()
    if not NAME.fullmatch(given.name):
        parser.error(f"{given.name!r} is no name for an adapter: lower-case words joined by '-'")
    module = given.module or given.name.replace("-", "_")
    if not all(part.isidentifier() for part in module.split(".")):
        parser.error(f"--module {module!r} cannot be imported: give the name that stands after `import`")
    title = given.title or given.name.replace("-", " ").title()
    if not class_name(title).isidentifier():
        parser.error(f"--title {title!r} begins no class name: begin it with a letter")
    folder = given.into / given.name
    if folder.exists():
        parser.error(f"{folder} exists already; remove it or give another --into")
    try:
        written = write(folder, given.name, module, title)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        parser.error(f"{folder} cannot be written: {error}")
    print("\n".join(str(path) for path in written))
    print("Next: the framework's versions (package.py, pyproject.toml), its doors (turns.py, begin() in")
    print("instrumentor.py), the contract's agents (tests/test_contract.py). How:")
    print("docs/contributing/write-an-adapter.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
