"""What MkDocs does besides: generated pages, the README as the first page, and links that leave the pages.

A link from a page to a file of the repository is shown as the file's path: the site is read without the
repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import reference

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FIRST = {"index.md": "README.md", "index.zh.md": "README.zh.md", "security.md": "SECURITY.md"}
"""Page → the file of the repository that it is."""
SHOWN_AS = {source: page for page, source in FIRST.items()}
FENCE = re.compile(r"(^```.*?^```\n)", re.M | re.S)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and the first page."""
    for place, make in reference.PAGES.items():
        files.append(File.generated(config, place, content=make()))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for place, source in FIRST.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    for image in re.findall(r"!\[[^\]]*\]\(([^)]+)\)|<img[^>]* src=\"([^\"]+)\"", readme):
        place = image[0] or image[1]
        if not place.startswith(("docs/", "http")) and (ROOT / place).exists():
            files.append(File.generated(config, place, abs_src_path=str(ROOT / place)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Rewrite links; code stays as it is."""
    first = page.file.src_uri in FIRST
    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _links(part, page, files, first) for part in parts)


def _links(text: str, page: Any, files: Files, first: bool) -> str:
    def link(found: re.Match[str]) -> str:
        image, label, place, anchor = found.group(1), found.group(2), found.group(3), found.group(4) or ""
        if not place or re.match(r"[a-z]+:", place):
            return found.group(0)
        if place in SHOWN_AS and first:
            return f"{image}[{label}]({SHOWN_AS[place]}{anchor})"
        if first and place.startswith("docs/"):
            place = place.removeprefix("docs/")
            return f"{image}[{label}]({place}{anchor})"
        here = Path(page.file.src_uri).parent
        if files.get_file_from_path(_joined(here, place)) is not None:
            return found.group(0)
        target = place if first else _from_docs(here, place)
        if target in SHOWN_AS:
            return f"{image}[{label}]({SHOWN_AS[target]}{anchor})"
        if not (ROOT / target).exists():
            return found.group(0)  # MkDocs says that it is broken
        return label if label.strip("`") in target else f"{label} (`{target}`)"

    return LINK.sub(link, text)


def _joined(here: Path, place: str) -> str:
    """The path of a link, from the pages' folder."""
    parts: list[str] = []
    for part in (here / place).parts:
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _from_docs(here: Path, place: str) -> str:
    """The path of a link, from the repository's folder."""
    return _joined(Path("docs") / here, place)
