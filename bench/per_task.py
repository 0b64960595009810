"""What each held-out task of a headline earned, and the headlines computed of that.

    python bench/per_task.py                                            print every headline again, as JSON
    python bench/per_task.py NAME CONFIG [--set KEY=VALUE ...] RUN ...  keep what the tasks of runs earned

``bench/results/per_task/NAME.jsonl`` begins with a line that says which configuration and runs it is of. Each
further line is a held-out task: its id, the field of ``evaluation.cluster``, and its reward ``before`` and
``after`` training in each run. A reward that is missing (``null``) was left out of the evaluation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "bench" / "results" / "per_task"
FIELDS = ("id", "kind")
"""Fields of a task that are kept beside the one of ``evaluation.cluster``."""

sys.path.insert(0, str(ROOT / "examples"))

from agentlightning.algorithms.intervals import mean_interval  # noqa: E402
from agentlightning.cli.options import read  # noqa: E402
from agentlightning.train.configured import configure  # noqa: E402


def evaluations(folders: Iterable[Path], name: str) -> list[list[float | None]]:
    """Return the rewards of the evaluations of that name, in the order of the runs."""
    lines = [
        json.loads(line)
        for folder in folders
        for line in (folder / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    return [one["rewards"] for one in lines if one["name"] == name]


def keep(name: str, config: str, sets: Sequence[str], folders: Sequence[Path]) -> None:
    """Write what the held-out tasks of runs earned."""
    read_config = read(ROOT / config, list(sets))
    tasks, cluster = configure(read_config).val, read_config.evaluation.cluster
    found = {when: evaluations(folders, when) for when in ("before", "after")}
    head = {"config": config, "set": list(sets), "runs": [one.name for one in folders], "cluster": cluster}
    fields = dict.fromkeys((*FIELDS, cluster) if cluster else FIELDS)
    lines: list[dict[str, Any]] = [head]
    for place, task in enumerate(tasks):
        own = {field: task[field] for field in fields if field in task}
        rewards = {when: [_short(run[place]) for run in runs] for when, runs in found.items()}
        lines.append({**own, **rewards})
    KEPT.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (KEPT / f"{name}.jsonl").write_text(text, encoding="utf-8")


def _short(reward: float | None) -> float | None:
    return int(reward) if reward is not None and reward == int(reward) else reward


def kept(*names: str) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the tasks of the files of these names, with the field that says which are not independent."""
    cluster: str | None = None
    tasks: list[dict[str, Any]] = []
    for name in names:
        head, *own = (KEPT / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        cluster = json.loads(head)["cluster"]
        tasks += map(json.loads, own)
    return cluster, tasks


def scored(
    values: Sequence[float | None], units: Sequence[Any] | None, cluster: str | None
) -> dict[str, Any]:
    """Return the mean of rewards that were not left out, and its 95 % interval."""
    own = [place for place, value in enumerate(values) if value is not None]
    rewards = [float(values[place] or 0.0) for place in own]
    found = mean_interval(rewards, units and [units[place] for place in own], cluster)
    return {"n": len(own), "reward": sum(rewards) / len(rewards), "ci": found.ends, "interval": found.kind}


def headline(*names: str) -> dict[str, list[dict[str, Any]]]:
    """Return the score of each run before and after training. ``names``: files whose tasks are one set."""
    cluster, tasks = kept(*names)
    units = [task[cluster] for task in tasks] if cluster else None
    runs = range(len(tasks[0]["after"]))
    return {
        when: [scored([task[when][run] for task in tasks], units, cluster) for run in runs]
        for when in ("before", "after")
    }


HEADLINES = {
    "router": ("router_half_0", "router_half_1"),
    "router, 13 databases": ("router_names",),
    "calc_x": ("calc_x",),
    "spider": ("spider",),
    "desk": ("desk",),
    "text_world": ("text_world",),
    "search": ("search",),
}


def main() -> None:
    """Keep what the tasks of runs earned, or print every headline."""
    parser = argparse.ArgumentParser(description="What each held-out task of a headline earned.")
    parser.add_argument("name", nargs="?")
    parser.add_argument("config", nargs="?")
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_intermixed_args()
    if given.name:
        keep(given.name, given.config, given.set, given.runs)
    else:
        for name, files in HEADLINES.items():
            print(json.dumps({"headline": name, **headline(*files)}))


if __name__ == "__main__":
    main()
