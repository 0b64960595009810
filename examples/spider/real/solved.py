"""How often a policy solves training questions: training asks those of which it solves some and not all.

    python -m spider.real.solved RUN [RUN ...]

``RUN``: evaluations with several samples of each question, such as

    agl eval --config examples/spider/real/cpu.yaml --policy POLICY --samples 4 \\
        --set "environment.val={target: spider.real.tasks:load, args: {spec: train, limit: 300}}"

Writes ``solved.json`` (id → [solved, tried]), which ``tasks.load`` reads, and prints how many questions have
which rate.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter

from spider.real.outcomes import outcomes
from spider.real.tasks import SOLVED


def rates(places: list[str]) -> dict[str, list[int]]:
    """Return how often each question of some runs was solved, and how often it was tried."""
    found: dict[str, list[int]] = {}
    for place in places:
        for one in asyncio.run(outcomes(place)):
            right, tried = found.get(one.id, (0, 0))
            found[one.id] = [right + int(one.last == 1.0), tried + 1]
    return found


def main() -> None:
    """Read the runs, write the file, print."""
    parser = argparse.ArgumentParser(
        prog="python -m spider.real.solved", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("run", nargs="+")
    found = rates(parser.parse_args().run)
    SOLVED.write_text(json.dumps(found, separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
    counts = Counter(f"{right} of {tried}" for right, tried in found.values())
    print(json.dumps({"questions": len(found), **dict(sorted(counts.items()))}))


if __name__ == "__main__":
    main()
