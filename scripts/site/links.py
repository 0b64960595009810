"""Follows every link of the built site; none of them leaves it but by a URL."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links = set[str]()
        self.places = set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep ``href``, ``src``, ``id`` and ``name``."""
        for name, value in attrs:
            if value and (name == "src" or (name == "href" and tag == "a")):
                self.links.add(value)
            elif value and (name == "id" or (name == "name" and tag == "a")):
                self.places.add(value)


def dead(folder: Path) -> Iterator[str]:
    """Yield ``page: link`` for each link that leads nowhere, and ``no page`` where nothing was built."""
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.html"))}
    if not pages:
        yield f"{folder}: no page"
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or file.name == "404.html":
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            if target.is_dir():
                target /= "index.html"
            there = pages.get(target)
            known = there is None or not parts.fragment or unquote(parts.fragment) in there.places
            if not target.exists() or not known:
                yield f"{file.relative_to(folder)}: {link}"
