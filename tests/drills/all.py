"""Kill -9 over store, gateways, runners, trainer and PostgreSQL, on both databases: `make drills`.

The parts run one after the other, each in processes of its own:

- ``core.py``: a run that trains in deterministic mode; trainer, runner and store server die, and every step
  must come out with the hashes of a quiet run.
- ``light.py``, over SQLite and over PostgreSQL: store server, gateways and runners (and the database) die
  every second under light load, while an intruder asks for what it may not have.
- ``postgres.py`` and ``partition.py``, where they are there: many writers over a database that dies, and
  networks that part.

    python tests/drills/all.py [--kills 200] [--seed 1] [--postgres-python PYTHON]

``--postgres-python``: an interpreter with agl-postgres and a server (the extra ``test`` has both);
without it nothing runs over PostgreSQL, and the drill fails. The last line is one JSON object; exit
status 1 where something was lost, doubled or given away, where fewer processes were killed than asked for, or
where a role was never hit.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
WRONG = ("lost", "doubled", "foreign_access")
ROLES = ("store", "gateway", "runner", "trainer", "postgresql")
"""What must have been killed."""
NAMES = {"server": "postgresql", "client": "writer"}
"""What `postgres.py` calls its roles: the database, and the processes that write it."""
SHARES = {"core": 0.28, "light-sqlite": 0.36, "light-postgresql": 0.36}
"""Of the kills; `postgres.py` makes more."""
MORE = 30
"""Kills of `postgres.py`, and cuts of `partition.py`, beyond those."""


@dataclass(frozen=True)
class Part:
    """A drill of its own, as a command."""

    name: str
    command: Sequence[str]


def parts(kills: int, seed: int, postgres: str | None) -> Iterator[Part]:
    """Return the drills, with so many kills among them."""
    count = {name: -(-round(100 * kills * share) // 100) for name, share in SHARES.items()}
    steps = max(12, count["core"] // 3)
    core = ["--kills", str(count["core"]), "--steps", str(steps), "--seed", str(seed)]
    yield Part("core", [sys.executable, str(HERE / "core.py"), *core])
    for name, python in (("light-sqlite", sys.executable), ("light-postgresql", postgres)):
        if python is not None:
            database = name.removeprefix("light-")
            light = ["--kills", str(count[name]), "--seed", str(seed), "--database", database]
            yield Part(name, [python, str(HERE / "light.py"), *light])
    for name, option, python in (("postgres", "--kills", postgres), ("partition", "--cuts", sys.executable)):
        if python is not None and (HERE / f"{name}.py").exists():
            yield Part(name, [python, str(HERE / f"{name}.py"), option, str(MORE)])


def run(part: Part) -> dict[str, Any]:
    """Run a drill; what it reports goes to stderr, and its last line is returned with its exit status."""
    print(f"drill {part.name}", file=sys.stderr, flush=True)
    began = time.monotonic()
    done = subprocess.run(part.command, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.strip().splitlines()
    found: dict[str, Any] = {}
    if lines:
        found = json.loads(lines[-1])
    found |= {
        "part": part.name,
        "exit_status": done.returncode,
        "part_seconds": round(time.monotonic() - began),
    }
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def together(found: Sequence[dict[str, Any]], kills: int) -> dict[str, Any]:
    """Return one account of all drills."""
    by: Counter[str] = Counter()
    for one in found:
        killed = one.get("by") or one.get("killed") or {}
        by.update({NAMES.get(role, role): count for role, count in killed.items()})
    missing = [role for role in ROLES if not by[role]]
    failed = [one["part"] for one in found if one["exit_status"]]
    enough = by.total() >= kills
    return {
        "kills": by.total(),
        **{name: sum(one.get(name, 0) for one in found) for name in WRONG},
        "by": dict(by),
        "hash_mismatches": sum(one.get("hash_mismatches", 0) for one in found),
        "refused": sum(map(refusals, found)),
        "cuts": sum(one.get("cuts", 0) for one in found),
        "never_killed": missing,
        "failed": failed,
        "good": enough
        and not missing
        and not failed
        and not any(one.get(name, 0) for one in found for name in WRONG),
        "parts": [{name: one[name] for name in ("part", "part_seconds", "exit_status")} for one in found],
    }


def refusals(found: dict[str, Any]) -> int:
    """Return how many writes or requests a drill saw refused; `postgres.py` has them by kind."""
    told = found.get("refused", 0)
    return sum(told.values()) if isinstance(told, dict) else told


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill -9 over everything, on both databases.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres-python", help="an interpreter with agl-postgres and a server")
    parser.add_argument("--only", nargs="+", help="some of the parts, by name")
    given = parser.parse_args()
    chosen = [
        part
        for part in parts(given.kills, given.seed, given.postgres_python)
        if not given.only or part.name in given.only
    ]
    told = together([run(part) for part in chosen], given.kills)
    print(json.dumps(told))
    return 0 if told["good"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
