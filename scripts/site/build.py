"""Builds the documentation site, offline, and checks what it says (``make docs``).

    python scripts/site/build.py [FOLDER]

Warnings are errors; keys, options, commands, hooks, variables and names without a text are listed; blocks of
README and pages are run or checked; links of the built pages are followed. The last line is JSON: ``pages``
and ``words`` of the user's part (what stands in the navigation before *Contributing*, translations apart),
``blocks_run``, ``blocks_checked``, ``blocks_elsewhere`` (what they need or what runs them → blocks),
``outputs``, ``undocumented``, ``dead_links``, ``wrong``. The exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))


def main() -> int:
    import reference
    import snippets
    from links import dead
    from parts import user_pages, words

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "site"
    missing = reference.undocumented()
    for name in missing:
        print(f"undocumented: {name}", file=sys.stderr)
    found = snippets.check(train=True)
    wrong = found.wrong
    for problem in wrong:
        print(f"wrong: {problem}", file=sys.stderr)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # advertising
    status = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, env=quiet).returncode
    broken = sorted(dead(folder))
    for link in broken:
        print(f"dead: {link}", file=sys.stderr)
    print(f"the site: {folder}", file=sys.stderr)
    pages = user_pages()
    told = {
        "pages": len(pages),
        "words": sum(map(words, pages)),
        "blocks_run": found.run,
        "blocks_checked": found.checked,
        "blocks_elsewhere": found.needs,
        "outputs": found.outputs,
        "undocumented": len(missing),
        "dead_links": len(broken),
        "wrong": wrong,
    }
    print(json.dumps(told))
    return 1 if status or missing or wrong or broken else 0


if __name__ == "__main__":
    sys.exit(main())
