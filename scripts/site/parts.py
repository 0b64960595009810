"""The user's part of the documentation: what stands in the navigation before *Contributing*."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = {"index.md": "README.md", "security.md": "SECURITY.md"}
"""Page → the file of the repository's root that it is."""


def user_pages() -> list[str]:
    """The pages that a user reads, without translations."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    parts = [part for part in nav if "Contributing" not in part]
    assert len(parts) < len(nav), "mkdocs.yml has no part Contributing"
    return [place for place in places(parts) if not place.endswith(".zh.md")]


def places(nav: Any) -> list[str]:
    """Every page of a part of the navigation."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav
    return [place for part in parts for place in places(part)]


@cache
def words(place: str) -> int:
    """Words of a page's Markdown, tables and blocks included."""
    import reference

    if place in reference.PAGES:
        return len(reference.PAGES[place]().split())
    file = ROOT / FILES[place] if place in FILES else ROOT / "docs" / place
    return len(file.read_text(encoding="utf-8").split())
