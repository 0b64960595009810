"""The suite's own distributions: the line that installs, from a checkout, the one that is missing.

``suite.toml`` has a table for each of them: what it brings. No package index under our control has them, so a
line names folders, with every folder of the suite that one needs. pip would look for a missing one elsewhere.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from agentlightning.types.base import meant

TABLE = Path(__file__).with_name("suite.toml")


@cache
def checkout() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return kind → name → folders of a checkout, the last that of the distribution which brings it, with the
    extra that brings the framework.
    """
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for room, parts in tomllib.loads(TABLE.read_text(encoding="utf-8")).items():
        for part, brings in parts.items():
            needs = brings.pop("needs", ())
            for kind, names in brings.items():
                for name, bracket, extra in (word.partition("[") for word in names.split()):
                    folders = "./core", *needs, f"./{room}/{part}{bracket}{extra}"
                    found.setdefault(kind, {})[name] = folders
    return found


def install_line(kind: str, name: str) -> str | None:
    """Return the command that installs, from a checkout, what brings ``name`` (``kind``: ``driver``, ``API``,
    …); ``None`` if nothing of the suite does.
    """
    folders = checkout().get(kind, {}).get(name)
    if folders is None:
        return None
    words = [f'"{folder}"' if "[" in folder else folder for folder in folders]
    return f"pip install -c constraints.txt {' '.join(words)}"


def not_installed(kind: str, name: str) -> str | None:
    """Return a sentence that names the plugin of something, and how to install it; ``None`` if it is of no
    plugin of the suite.
    """
    if (line := install_line(kind, name)) is None:
        return None
    plugin = checkout()[kind][name][-1].rpartition("/")[2].partition("[")[0]
    return (
        f"it comes with agl-{plugin}, which is not installed, or AGL_PLUGINS leaves it out; in a checkout of "
        f"Agent Lightning: {line}"
    )


def instead(name: str, known: Iterable[str], *kinds: str) -> str:
    """Return the end of a sentence about the unknown ``name``: what brings it, or what was meant."""
    said = next(filter(None, (not_installed(kind, name) for kind in kinds)), None)
    return f": {said}" if said else meant(name, known, kinds[-1])
