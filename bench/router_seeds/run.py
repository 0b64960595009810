"""The demo with a pretrained model for several seeds, and the same training held out by halves of databases.

    python bench/record.py router_seeds -- python bench/router_seeds/run.py --names 1 2 3 --schemas 1
    python bench/router_seeds/run.py [--names SEED ...] [--schemas SEED ...] [--halves SEED ...] [--keep FILE]

``--names``: seeds of the demo as a person would start it. ``--schemas``: seeds of the harder row
(``schemas.yaml``). ``--halves``: seeds of two runs with the demo's settings, which hold out 35 of the
training databases each; together they answer questions about all 70 databases on which no setting was chosen.
``--keep``: a file that gets each run's last line as soon as it is there; runs that the file has are not made
again. What each question earned goes to ``bench/results/per_task``. The last line is one JSON object: one
entry per run, and whether every run cleared the bars.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from per_task import keep

ROOT = Path(__file__).resolve().parents[2]
DEMO = "examples/router/demo.py"
PER_DATABASE = 16
"""Questions about one database that a run which holds out half of the databases is evaluated on, at most."""
GAIN = 0.20
"""The least difference of the reward after and before."""


class Row(NamedTuple):
    """A configuration of the demo, with what is set in it."""

    config: str
    sets: tuple[str, ...] = ()


def half(number: int) -> Row:
    """Return the row that holds out a half of the training databases."""
    val = f"{{spec: half:{number}:heldout, per_database: {PER_DATABASE}}}"
    sets = (f"environment.train.args.spec=half:{number}:train", f"environment.val.args={val}")
    return Row("examples/router/cpu.yaml", sets)


ROWS = {
    "names": Row("examples/router/cpu.yaml"),
    "schemas": Row("examples/router/schemas.yaml"),
    "half_0": half(0),
    "half_1": half(1),
}


def run(name: str, seed: int) -> dict[str, Any]:
    """Return the last line of one run of the demo."""
    row = ROWS[name]
    command = [DEMO, "--config", row.config, "--seed", str(seed)]
    command += [word for one in row.sets for word in ("--set", one)]
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    line = json.loads(done.stdout.strip().splitlines()[-1])
    return {"row": name, "command": " ".join(["python", *command]), **line}


def kept(file: Path | None) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the runs that a file has, by row and seed."""
    lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    return {(one["row"], one["seed"]): one for one in map(json.loads, lines)}


def judged(runs: Sequence[dict[str, Any]]) -> dict[str, bool]:
    """Return what holds for all runs but those of the harder row: the gain, and exact calls."""
    main = [one for one in runs if one["row"] != "schemas"]
    return {
        "gained": all(one["reward_after"] - one["reward_before"] >= GAIN for one in main),
        "calls_exact": all(one["calls"] == one["calls_exact"] for one in runs),
    }


def main() -> int:
    """Make the runs, print."""
    parser = argparse.ArgumentParser(description="The demo with a pretrained model for several seeds.")
    for option in ("names", "schemas", "halves"):
        parser.add_argument(f"--{option}", nargs="*", type=int, default=[], metavar="SEED")
    parser.add_argument("--keep", type=Path, metavar="FILE")
    given = parser.parse_args()
    known = kept(given.keep)
    seeds = {
        "names": given.names, "schemas": given.schemas, "half_0": given.halves, "half_1": given.halves,
    }  # fmt: skip
    runs = []
    for name, numbers in seeds.items():
        mine = []
        for seed in numbers:
            one = known.get((name, seed)) or run(name, seed)
            mine.append(one)
            if given.keep and (name, seed) not in known:
                with given.keep.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(one) + "\n")
        if mine:
            folders = [ROOT / "runs" / one["run_id"] for one in mine]
            keep(f"router_{name}", ROWS[name].config, ROWS[name].sets, folders)
        runs += mine
    verdict = judged(runs)
    print(json.dumps({"runs": runs, **verdict}))
    return 0 if all(verdict.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
