"""The corpus: pages of the CIA World Factbook, cut into short documents whose text stands as published.

A document is one section of a country's page: a title, a first line with the country's names, and a line for
each of a few fields. ``python -m search.corpus FOLDER`` writes ``data/factbook.jsonl`` from a checkout of
factbook/factbook.json; a run reads that file and nothing else.
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data" / "factbook.jsonl"
FIELDS: dict[str, tuple[str, ...]] = {
    "Geography": (
        "Location", "Land boundaries/border countries", "Climate", "Elevation/highest point",
    ),
    "Government": (
        "Government type", "Capital/name", "National holiday", "National symbol(s)",
    ),
    "Economy": (
        "Industries", "Exports - partners", "Exports - commodities", "Imports - partners",
        "Imports - commodities",
    ),
    "Communications": ("Broadcast media", "Internet country code", "Internet users/percent of population"),
    "Transportation": (
        "Civil aircraft registration country code prefix", "Airports", "Railways/total",
        "Merchant marine/total",
    ),
}  # fmt: skip
"""Section → its fields, with their place in a page."""
LONGEST = 100
"""Characters of a field."""
LINES = " | "
"""What stands between a title and the first line in the results of a search."""


@dataclass(frozen=True)
class Document:
    """A section of a country's page; its first line has the country's names."""

    title: str
    text: str

    @property
    def country(self) -> str:
        return self.title.rpartition(": ")[0]

    @property
    def section(self) -> str:
        return self.title.rpartition(": ")[2]


@cache
def documents() -> tuple[Document, ...]:
    """Every document, in the order of their titles."""
    return tuple(Document(**json.loads(line)) for line in DATA.read_text(encoding="utf-8").splitlines())


def pages(folder: Path) -> Iterator[Document]:
    """The documents of every page below ``folder`` of a country with a capital."""
    for path in sorted(folder.glob("*/*.json")):
        page: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        names = page.get("Government", {}).get("Country name", {})
        if not _text(page.get("Government", {}), "Capital/name"):
            continue
        short, long, letters = (
            _plain(_text(names, f"{kind}")) for kind in
            ("conventional short form", "conventional long form", "abbreviation")
        )  # fmt: skip
        name = short if short and short != "none" else long
        first = ", ".join(dict.fromkeys(one for one in (long, name, letters) if one and one != "none"))
        for section, fields in FIELDS.items():
            lines = [
                f"{label(field)}: {value}" for field in fields if (value := _value(page, section, field))
            ]
            if name and lines:
                yield Document(f"{name}: {section}", "\n".join([first, *lines]))


def label(field: str) -> str:
    """A field's label in the text: the last part of its place that says something."""
    first, _, last = field.partition("/")
    return last if last in ("border countries", "highest point") else first


def _value(page: Mapping[str, Any], section: str, field: str) -> str:
    value = _plain(_text(page.get(section, {}), field))
    if len(value) <= LONGEST:
        return value
    return value[:LONGEST].rsplit(" ", 1)[0] + " …"


def _text(part: Mapping[str, Any], field: str) -> str:
    for name in field.split("/"):
        found = part.get(name, {})
        part = found if isinstance(found, Mapping) else {}
    return str(part.get("text", ""))


def _plain(text: str) -> str:
    """Without markup, notes that follow in bold, and line ends."""
    text = re.split(r"<br\s*/?>|<p>|<strong>|<b>note", text.strip())[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())


def main() -> None:
    """Write the data file."""
    found = sorted(pages(Path(sys.argv[1])), key=lambda one: one.title)
    lines = [json.dumps(asdict(one), ensure_ascii=False) for one in found]
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} documents in {DATA}")


if __name__ == "__main__":
    main()
