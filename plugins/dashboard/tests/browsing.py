"""A browser without a screen: pages by address, their links, and what a page must never contain."""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp

from agl_dashboard.server.app import Dashboard

TOKEN = "a token that only the tests know"


class Page(HTMLParser):
    """What a browser sees of a page."""

    VOID = frozenset(
        ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
    )

    def __init__(self, status: int, text: str, headers: Any) -> None:
        super().__init__()
        self.status, self.text, self.headers = status, text, headers
        self.links: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert len(given) == len(attrs), f"an attribute twice: {attrs}"
        self.elements.append((tag, given))
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "a" and (href := given.get("href")):
            self.links.append(href)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-3:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def words(self) -> str:
        """The text of the page, in single spaces."""
        return " ".join(" ".join(self.said).split())

    @property
    def active(self) -> list[tuple[str, dict[str, str | None]]]:
        """Elements that could run or fetch something which the page did not bring along."""
        wrong = []
        for tag, given in self.elements:
            own = all(str(given.get(name) or "/static/").startswith("/") for name in ("src", "data"))
            handlers = any(name.startswith("on") or name == "style" for name in given)
            script = tag == "script" and not str(given.get("src")).startswith("/static/")
            href = urlsplit(str(given.get("href") or "")).scheme not in ("", "http")
            if handlers or script or href or not own or tag in ("style", "object", "embed", "base"):
                wrong.append((tag, given))
        return wrong


@dataclass
class Browser:
    """A browser that was let in."""

    dashboard: Dashboard
    session: aiohttp.ClientSession

    async def get(self, address: str, status: int = 200, **headers: str) -> Page:
        """Open a page, and check its status."""
        given = {"Authorization": f"Bearer {TOKEN}", **headers}
        url = urljoin(self.dashboard.url, address)
        async with self.session.get(url, headers=given, allow_redirects=False) as answer:
            text = await answer.text()
            assert answer.status == status, (address, answer.status, text[-2000:])
            return Page(answer.status, text, answer.headers)

    async def crawl(self, start: str = "/", most: int = 2_000) -> dict[str, Page]:
        """Open every page that links lead to from ``start``; each must open."""
        seen: dict[str, Page] = {}
        waiting = [start]
        while waiting and len(seen) < most:
            address = waiting.pop()
            if address in seen:
                continue
            seen[address] = page = await self.get(address)
            for link in page.links:
                found = urlsplit(urljoin(address, link))
                place = found.path + (f"?{found.query}" if found.query else "")
                if not link.startswith("#") and place not in seen:
                    waiting.append(place)
        return seen
