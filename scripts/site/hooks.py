"""What MkDocs does besides: generated pages, and a page for each file of the repository that a page links to.

README, SECURITY and the like, and the READMEs of adapters, plugins and examples are pages. Another file that
a page links to is shown as a page if it is a program, listed if it is a folder, and else copied as it is. So
every link of the site leads somewhere on the site, which is read without the repository.
"""

from __future__ import annotations

import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

sys.path.insert(0, str(Path(__file__).parent))
import reference

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
FIRST = {
    "index.md": "README.md",
    "index.zh.md": "README.zh.md",
    "security.md": "SECURITY.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Page → the file of the repository's root that it is."""
ROOMS = {
    "Adapters": "adapters/*/README.md",
    "Examples": "examples/**/README.md",
    "Plugins": "plugins/*/README.md",
}
"""Part of the navigation → the READMEs in it."""
PROGRAMS = (".py", ".toml", ".yaml")
"""Endings of the files that are shown as a page."""
FENCE = re.compile(r"(^ *```.*?^ *```[^\n]*\n)", re.M | re.S)
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"


@cache
def pages() -> dict[str, str]:
    """File of the repository → the page that it is."""
    found = {source: page for page, source in FIRST.items()}
    for pattern in ROOMS.values():
        found |= {place: place for file in ROOT.glob(pattern) if "node_modules" not in (place := _of(file))}
    for file in (ROOT / "docs").rglob("*.md"):
        found[_of(file)] = file.relative_to(ROOT / "docs").as_posix()
    return found | {f"docs/{page}": page for page in reference.PAGES}


def on_config(config: Any) -> Any:
    """Add the READMEs to the navigation, by their titles."""
    for part, pattern in ROOMS.items():
        listed = [{_title(ROOT / place): place} for place in sorted(pages()) if _in(place, pattern)]
        config.nav.append({part: listed})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, the files of the repository that are pages, and what these link to."""
    for place, make in reference.PAGES.items():
        files.append(File.generated(config, place, content=make()))
    for source, page in pages().items():
        if not source.startswith("docs/"):
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=text))
    for place in sorted(linked()):
        source, page = ROOT / place, page_of(place)
        if source.is_dir():
            inside = sorted(_of(file) for file in source.rglob("*") if file.is_file())
            text = "\n".join(
                [f"# {place}", "", *(f"- `{one}`" for one in inside if "__pycache__" not in one)]
            )
        elif place.endswith(".md"):
            text = source.read_text(encoding="utf-8")
        elif page != place:
            text = f"# {place}\n\n```{source.suffix[1:]}\n{source.read_text(encoding='utf-8')}```\n"
        else:
            files.append(File.generated(config, place, abs_src_path=str(source)))
            continue
        unlisted = InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, page, content=UNSEARCHED + text, inclusion=unlisted))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links lead to pages; code stays as it is."""
    here = page.file.src_uri
    return "".join(
        part if part.lstrip().startswith("```") else LINK.sub(lambda found: _link(found, here), part)
        for part in FENCE.split(markdown)
    )


def _link(found: re.Match[str], here: str) -> str:
    image, label, place, anchor = found.group(1), found.group(2), found.group(3), found.group(4) or ""
    if not place or re.match(r"[a-z]+:", place):
        return found.group(0)
    target = _joined(source_of(here), place)
    if target.startswith("docs/") and target not in pages():
        there = target.removeprefix("docs/")
    elif (ROOT / target).exists() or target in pages():
        there = page_of(target)
    else:
        return found.group(0)  # MkDocs says that it is broken
    return f"{image}[{label}]({os.path.relpath(there, os.path.dirname(here) or '.')}{anchor})"


def source_of(page: str) -> str:
    """The file of the repository that a page is."""
    return next((source for source, place in pages().items() if place == page), page)


def page_of(place: str) -> str:
    """The page of a file of the repository, or the path at which it is copied."""
    if place in pages():
        return pages()[place]
    if (ROOT / place).is_dir():
        return pages().get(f"{place}/README.md", f"{place}.md")
    return f"{place}.md" if place.endswith(PROGRAMS) else place


@cache
def linked() -> frozenset[str]:
    """Every file and folder of the repository that a page links to and that is none of the pages."""
    found = set[str]()
    for source in pages():
        if not (ROOT / source).exists():  # generated
            continue
        for part in FENCE.split((ROOT / source).read_text(encoding="utf-8")):
            if not part.lstrip().startswith("```"):
                targets = (link.group(3) for link in LINK.finditer(part))
                found |= {_joined(source, one) for one in targets if one and not re.match(r"[a-z]+:", one)}
    known = set(pages()) | {source.removesuffix("/README.md") for source in pages()}
    return frozenset(one for one in found - known if not one.startswith("docs/") and (ROOT / one).exists())


def _joined(page: str, place: str) -> str:
    """The path of a link of a page, from the repository's folder."""
    return os.path.normpath(os.path.join(os.path.dirname(page), place))


def _of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def _in(place: str, pattern: str) -> bool:
    return place in {_of(file) for file in ROOT.glob(pattern)}


def _title(file: Path) -> str:
    found = re.search(r"^# (.+)$", file.read_text(encoding="utf-8"), re.M)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|`", r"\1", found[1]) if found else file.parent.name
