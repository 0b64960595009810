"""Train the agent and put it beside the best script that knows no kitchen: ``make text-world``.

    python examples/text_world/demo.py [--seed N] [--steps N] [--set KEY=VALUE ...]

The last line is one JSON object. ``baseline`` is the careful reader, on the same games;
``ahead_of_baseline`` is the mean difference to it, game by game. The exit status is 1 if a call was not
captured exactly.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from agentlightning.cli import run_command  # noqa: E402
from small_policy import demo  # noqa: E402
from text_world.baselines import careful_reader, rewards  # noqa: E402


def main(words: Sequence[str] | None = None) -> int:
    """Train and print. ``words``: of the command line."""
    return demo.main(HERE, __doc__ or "", partial(rewards, careful_reader), words)


if __name__ == "__main__":
    run_command(lambda: sys.exit(main()))
