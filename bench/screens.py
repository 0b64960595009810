"""What a newcomer sees first, in a real browser at 1440 and 390 pixels: pictures in docs/images/screens.

    make docs && make screens RUN=runs/NAME

README as a page, the first page of the documentation (``dist/site``), what ``agl init`` writes, and the
dashboard's overview of the run. ``too_wide`` names the pages that are wider than the screen. The last line is
JSON; the exit status is 1 if a page is too wide.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "dashboard"))

from playwright.sync_api import sync_playwright
from run import AGL, FLAGS, PYTHON, ROOT, chromium, serving

WIDTHS = {1440: 900, 390: 844}
"""Pixels of the screen's width → of its height."""
FOLDER = ROOT / "docs" / "images" / "screens"
MARKDOWN = """import sys
from markdown_it import MarkdownIt
print(MarkdownIt().enable("table").render(sys.stdin.read()))"""
STYLE = """body { max-width: 830px; margin: 2rem auto; padding: 0 1rem; color: #1f2328 }
body { font: 16px/1.5 system-ui, sans-serif } img { max-width: 100% } code { font-size: 85% }
pre { background: #f6f8fa; padding: 1rem; overflow: auto } pre.said { white-space: pre-wrap }
h2 { border-bottom: 1px solid #d1d9e0 } td, th { border: 1px solid #d1d9e0; padding: 6px 13px }
table { border-collapse: collapse; display: block; overflow: auto }"""


def page(title: str, body: str) -> str:
    """A page in the manner in which a host of repositories shows a README."""
    view = '<meta name="viewport" content="width=device-width">'
    return f'<!doctype html><meta charset="utf-8">{view}<title>{title}</title><style>{STYLE}</style>{body}'


def readme() -> str:
    """README as HTML; pictures are found from the repository's root."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    made = subprocess.run(
        [PYTHON, "-c", MARKDOWN], input=text, capture_output=True, encoding="utf-8", check=True
    )
    return page("README", f'<base href="{ROOT.as_uri()}/">{made.stdout}')


def project(folder: Path) -> str:
    """What ``agl init`` says and writes."""
    words = [str(AGL), "init", "my-agent", "--framework", "langgraph"]
    said = subprocess.run(words, cwd=folder, capture_output=True, encoding="utf-8", check=True)
    files = sorted(path for path in (folder / "my-agent").iterdir())
    tree = [f"{path.name:<20}{len(path.read_text(encoding='utf-8').splitlines()):>5} lines" for path in files]
    agent = (folder / "my-agent" / "agent.py").read_text(encoding="utf-8")
    shown = f"$ {' '.join(['agl', *words[1:]])}\n{said.stdout}{said.stderr}\n" + "\n".join(tree)
    return page("agl init", f"<pre class=said>{escape(shown)}</pre><p>agent.py</p><pre>{escape(agent)}</pre>")


@contextmanager
def pages(run: Path) -> Iterator[dict[str, str]]:
    """Yield the address of each page by its name, while it is served."""
    with tempfile.TemporaryDirectory(prefix="agl-screens-") as name, serving(run) as dashboard:
        folder = Path(name)
        (folder / "readme.html").write_text(readme(), encoding="utf-8")
        (folder / "init.html").write_text(project(folder), encoding="utf-8")
        yield {
            "readme": (folder / "readme.html").as_uri(),
            "site": (ROOT / "dist" / "site" / "index.html").as_uri(),
            "init": (folder / "init.html").as_uri(),
            "dashboard": dashboard,
        }


def main() -> int:
    """Take the pictures; the last line is JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="the folder of a finished run")
    given, too_wide = parser.parse_args(), list[str]()
    FOLDER.mkdir(exist_ok=True)
    with pages(given.run) as addresses, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium(), headless=True, args=FLAGS)
        context = browser.new_context(reduced_motion="reduce")
        tab = context.new_page()
        for name, address in addresses.items():
            tab.goto(address)
            if name == "dashboard":
                tab.get_by_role("link", name=given.run.name).first.click()
            for width, height in WIDTHS.items():
                tab.set_viewport_size({"width": width, "height": height})
                tab.wait_for_timeout(500)
                size = tab.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
                too_wide += [f"{name} at {width}: {size[0]}"] if size[0] > size[1] else []
                tab.screenshot(path=FOLDER / f"{name}-{width}.png")
        browser.close()
    print(json.dumps({"pictures": len(addresses) * len(WIDTHS), "too_wide": too_wide}))
    return 1 if too_wide else 0


if __name__ == "__main__":
    sys.exit(main())
