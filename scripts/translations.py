"""Keeps the pages in Chinese in step with the English ones; ``--check`` says what is not.

    python scripts/translations.py            copy blocks of output from the English pages
    python scripts/translations.py --check    exit 1 if a page is not in step
    python scripts/translations.py --reviewed README.zh.md
                                              it has been read beside the English page as it is now

A translation has the headings, blocks, tables and links of its source, in the same order. Its first line
names the source and the sha256 of the text that it was reviewed against: a change of the English page makes
the check fail until somebody has looked at the translation again. Comments of shell blocks may be translated.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.zh.md": "README.md", "docs/first-hour.zh.md": "docs/first-hour.md"}
"""Translation → its source."""
MARK = re.compile(r"\A<!-- translated from (\S+), reviewed at sha256 ([0-9a-f]{64}) -->\n")
FENCED = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.S | re.M)
GENERATED = re.compile(r"<!-- adapters: generated.*?<!-- /adapters -->", re.S)
"""Tables that scripts write change without a word to translate."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^(#+) ", re.M)


def digest(source: str) -> str:
    """The sha256 of what a translator reads: the page without generated tables and without output."""
    text = GENERATED.sub("", source)
    return hashlib.sha256(FENCED.sub(lambda found: _read(found[1], found[0]), text).encode()).hexdigest()


def _read(language: str, block: str) -> str:
    return "" if language == "text" else block


def problems(source: str, translation: str) -> Iterator[str]:
    """Yield what is not in step."""
    mark = MARK.match(translation)
    if mark is None:
        yield "its first line does not name the source and its sha256"
    elif mark[2] != digest(source):
        yield "the source has changed since: read both, then scripts/translations.py --reviewed"
    text = MARK.sub("", translation)
    ours, theirs = HEADING.findall(FENCED.sub("", source)), HEADING.findall(FENCED.sub("", text))
    if ours != theirs:
        yield f"{len(theirs)} headings {theirs} for {len(ours)} {ours}"
    for number, (one, other) in enumerate(zip(_blocks(source), _blocks(text), strict=False), 1):
        if one != other:
            yield f"block {number} differs from the source's"
    if len(FENCED.findall(source)) != len(FENCED.findall(text)):
        yield f"{len(FENCED.findall(text))} blocks for {len(FENCED.findall(source))}"
    missing = sorted(set(_links(source)) ^ set(_links(text)))
    if missing:
        yield f"links of one page only: {', '.join(missing)}"
    rows = [page.count("\n|") for page in (FENCED.sub("", source), FENCED.sub("", text))]
    if rows[0] != rows[1]:
        yield f"{rows[1]} table rows for {rows[0]}"


def _blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block; shell blocks without comments."""
    return [
        (language, re.sub(r"[ \t]+#[^\n]*", "", text) if language in ("sh", "bash") else text)
        for language, text in FENCED.findall(page)
    ]


def _links(page: str) -> list[str]:
    """Where a page leads, but for the links from one language to the other."""
    theirs = {Path(page).name for page in PAGES}
    other = theirs | {Path(page).name for page in PAGES.values()}
    found = LINK.findall(FENCED.sub("", page))
    return [link for link in found if link not in other and Path(link).name not in theirs]


def filled(source: str, translation: str) -> str:
    """The translation with the source's blocks of output, and its generated tables."""
    outputs = [found[0] for found in FENCED.finditer(source) if found[1] == "text"]
    tables = GENERATED.findall(source)
    if len(outputs) == sum(language == "text" for language, _ in FENCED.findall(translation)):
        new = iter(outputs)
        translation = FENCED.sub(lambda found: next(new) if found[1] == "text" else found[0], translation)
    if len(tables) == len(GENERATED.findall(translation)):
        more = iter(tables)
        translation = GENERATED.sub(lambda found: next(more), translation)
    return translation


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="scripts/translations.py")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--reviewed", nargs="*", default=[], metavar="PAGE", choices=list(PAGES))
    asked, wrong = parser.parse_args(), 0
    for page, of in PAGES.items():
        source, translation = (
            (ROOT / of).read_text(encoding="utf-8"),
            (ROOT / page).read_text(encoding="utf-8"),
        )
        if not asked.check:
            translation = filled(source, translation)
            if page in asked.reviewed:
                mark = f"<!-- translated from {of}, reviewed at sha256 {digest(source)} -->\n"
                translation = mark + MARK.sub("", translation)
            (ROOT / page).write_text(translation, encoding="utf-8")
        for problem in problems(source, translation):
            print(f"{page}: {problem}", file=sys.stderr)
            wrong += 1
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
