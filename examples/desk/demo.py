"""Train the desk and put it beside scripts: ``make desk``.

    python examples/desk/demo.py [--seed N] [--steps N] [--set KEY=VALUE ...]

The last line is one JSON object. ``baseline`` is the best script that has a part of the policy, on the same
tasks; ``ahead_of_baseline`` is the mean difference to it, task by task. The exit status is 1 if a call was
not captured exactly, or if the script that keeps all rules fell short of 1.0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from agentlightning.cli import run_command  # noqa: E402
from desk.baselines import strongest_part  # noqa: E402
from small_policy import demo  # noqa: E402


def main(words: Sequence[str] | None = None) -> int:
    """Train and print. ``words``: of the command line."""
    return demo.main(HERE, __doc__ or "", strongest_part, words)


if __name__ == "__main__":
    run_command(lambda: sys.exit(main()))
