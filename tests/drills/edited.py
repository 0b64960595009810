"""Tamper drill: a run verifies, and a copy of it with one reward edited in the database does not.

`make drill-verify` takes the newest finished run in `runs/` (run `make demo` first), or the folder given. The
run itself is not touched. The last line is one JSON object: ``equal`` (the run verifies), ``edited`` (the
rollout whose reward was changed in the copy), ``named`` (the first difference names exactly it, with the
reward then and now).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from agentlightning import semconv
from agentlightning.store.codec import pack_span, unpack_span

ROOT = Path(__file__).parents[2]
AGL = str(Path(sys.executable).with_name("agl"))
REWARDS = (
    "SELECT seq, rollout_id, attempt_id, sequence, name, data FROM spans "
    "WHERE name = ? AND rollout_id IN (SELECT rollout_id FROM seals) ORDER BY seq"
)


def newest(runs: Path) -> Path:
    """The newest finished run with a store of its own."""
    found = [p.parent for p in runs.glob("*/summary.json") if (p.parent / "store.sqlite").exists()]
    if not found:
        raise SystemExit(f"no finished run in {runs}: run `make demo` first, or name a run's folder")
    return max(found, key=lambda p: (p / "summary.json").stat().st_mtime)


def edit(folder: Path, choose: random.Random) -> tuple[str, float, float]:
    """Turn one reward that a step was trained on into its opposite; the rollout, then and now."""
    connection = sqlite3.connect(folder / "store.sqlite")
    try:
        rows = connection.execute(REWARDS, (semconv.REWARD_SPAN,)).fetchall()
        seq, rollout_id, attempt_id, sequence, name, data = choose.choice(rows)
        span = unpack_span(
            data, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=sequence, name=name
        )
        then = float(span.attributes[semconv.REWARD_VALUE])
        span.attributes[semconv.REWARD_VALUE] = now = 1.0 - then
        connection.execute("UPDATE spans SET data = ? WHERE seq = ?", (pack_span(span), seq))
        connection.commit()
    finally:
        connection.close()
    return rollout_id, then, now


def verify(folder: Path) -> dict[str, Any]:
    """What `agl verify --json` says of a run's folder."""
    done = subprocess.run([AGL, "verify", str(folder), "--json"], stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert done.returncode == (0 if result["equal"] else 1), done.returncode
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", nargs="?", type=Path, help="a run's folder; default: the newest in runs/")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    run = arguments.run or newest(ROOT / "runs")
    whole = verify(run)
    with tempfile.TemporaryDirectory(prefix="agl-edited-") as base:
        copy = Path(shutil.copytree(run, Path(base) / run.name))
        rollout_id, then, now = edit(copy, random.Random(arguments.seed))
        found = verify(copy)
    causes = [d for d in found["differences"] if d["kind"] != "consequence"]
    named = [(d["rollout_id"], d["kind"], d["then"], d["now"]) for d in causes]
    result = {
        "run": run.name,
        "equal": whole["equal"],
        "steps": whole["steps"],
        "rollouts": whole["rollouts"],
        "rows": whole["rows"],
        "edited": rollout_id,
        "named": named == [(rollout_id, "reward", then, now)],
        "differences": [d["text"] for d in found["differences"]],
    }
    print(json.dumps(result))
    return 0 if result["equal"] and result["named"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
