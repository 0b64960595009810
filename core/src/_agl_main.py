"""The commands ``agl`` and ``agent-lightning``: refuse a foreign ``agentlightning`` by name, then start ours.

It stands outside the package because a foreign package of the same name may have replaced the package itself.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

PACKAGE_CONFLICT = Path(__file__).parent / "agentlightning" / "plugins" / "package_conflict.py"


def main() -> None:
    """Entry point of both scripts; exits with status 2 if a foreign package is in the way."""
    found = runpy.run_path(str(PACKAGE_CONFLICT))["find_conflict"]()
    if found is not None:
        sys.exit(_refusal(found.message()))
    from agentlightning.cli import main as start
    from agentlightning.cli.interrupts import exit_despite_threads

    try:
        start()
    finally:
        exit_despite_threads()


def _refusal(message: str) -> int:
    print(f"agl: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
