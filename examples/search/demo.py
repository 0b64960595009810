"""Train the agent and put it beside a script: ``make search``.

    python examples/search/demo.py [--seed N] [--steps N] [--set KEY=VALUE ...]

The last line is one JSON object. ``baseline`` is the best script that knows a part of what the scripted
reader knows, on the same questions; ``ahead_of_baseline`` is the mean difference to it, question by question.
The exit status is 1 if a call was not captured exactly, or if the oracle fell short of 1.0.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from agentlightning.cli import run_command  # noqa: E402
from search.baselines import exports_only, rewards  # noqa: E402
from small_policy import demo  # noqa: E402


def main(words: Sequence[str] | None = None) -> int:
    """Train and print. ``words``: of the command line."""
    return demo.main(HERE, __doc__ or "", partial(rewards, exports_only), words)


if __name__ == "__main__":
    run_command(lambda: sys.exit(main()))
