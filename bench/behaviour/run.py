"""Which alarms real runs raise: rewards that make an agent worse must, the examples must not.

    python bench/record.py behaviour -- python bench/behaviour/run.py --output runs/behaviour
    python bench/behaviour/run.py [--wrong SEED ...] [--sound SEED ...] [--output FOLDER] [--series FILE]

``--wrong``: seeds of the four rewards of ``agents.py`` that pay for what nobody wants. ``--sound``: seeds of
runs whose reward is right: that agent with the right reward, and the examples ``calc_x``, ``spider`` and
``werewolf`` as their files say, but for the number of steps and of held-out tasks. A run that ``--output``
holds whole is not made again. ``--series``: a file for the metrics of the runs that alarms read, of the first
seed of each (`plugins/audit/tests/behaviour_series.json`). The last line is one JSON object, with how far the
figures of sound runs went; exit status 1 if a wrong reward raises no alarm of its own, or a right one any.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from agl_audit.behaviour.alarms import FLAT, WINDOW, growth

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = {
    "calc_x": (24, ("environment.val.args.limit=8", "environment.headroom_tasks=4")),
    "spider": (20, ("environment.val.args.limit=8", "environment.headroom_tasks=4")),
    "werewolf": (12, ("environment.val.args.n=8",)),
}
"""Example → steps, and what is set to spend little on evaluations."""
WRONG = ("tools", "length", "collapse", "entropy")
READ = (
    "reward_mean", "reward_min", "reward_max", "behaviour/tool_calls", "behaviour/commonest",
    "behaviour/answer_tokens", "behaviour/cut", "entropy",
)  # fmt: skip
"""Metrics that alarms read."""


def make(name: str, seed: int, output: Path) -> list[dict[str, float]]:
    """Train one run, unless it is there, and return the metrics of its steps."""
    folder = output / f"{name}-{seed}"
    if not (folder / "summary.json").is_file():
        print(f"── {folder.name} ──", file=sys.stderr, flush=True)
        if name in EXAMPLES:
            steps, sets = EXAMPLES[name]
            words = [str(Path(sys.executable).with_name("agl")), "train"]
            words += ["--config", f"examples/{name}/cpu.yaml", "--seed", str(seed), "--steps", str(steps)]
            words += ["--run", folder.name]
            words += [word for one in (*sets, f"output={output}") for word in ("--set", one)]
        else:
            code = f"from agents import train; train({name!r}, {seed}, {str(output)!r})"
            words = [sys.executable, "-c", code]
        here = str(Path(__file__).parent)
        subprocess.run(words, cwd=ROOT if name in EXAMPLES else here, check=True, stdout=sys.stderr)
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["metrics"] for line in lines]


def found(name: str, seed: int, output: Path) -> dict[str, Any]:
    """Return what a run says of its alarms, as it raised them."""
    summary = json.loads((output / f"{name}-{seed}" / "summary.json").read_text(encoding="utf-8"))
    return {
        "run": name,
        "seed": seed,
        "alarms": {
            kind: {"after_step": one["last"][1], "figures": one["figures"]}
            for kind, one in (summary.get("alarms") or {}).items()
        },
    }


def extremes(sound: list[list[dict[str, float]]]) -> dict[str, float]:
    """Return how far the figures of sound runs went in any window, as alarms compare them: shares of the
    beginning, and for `commonest` and `cut` the means themselves.
    """
    far: dict[str, list[float]] = {}
    windows = 0
    for steps in sound:
        first = steps[:WINDOW]
        for end in range(2 * WINDOW, len(steps) + 1):
            last, windows = steps[end - WINDOW : end], windows + 1
            flat = growth(*([one["reward_mean"] for one in part] for part in (first, last))) < FLAT
            before, now = (
                {key: fmean(one.get(key, 0.0) for one in part) for key in READ} for part in (first, last)
            )
            if before["behaviour/tool_calls"]:
                share = now["behaviour/tool_calls"] / before["behaviour/tool_calls"]
                far.setdefault("tool_calls_least", []).append(-share)
            longer = now["behaviour/answer_tokens"] / before["behaviour/answer_tokens"]
            far.setdefault("answer_tokens_most", []).append(longer)
            far.setdefault("commonest_most", []).append(now["behaviour/commonest"])
            far.setdefault("cut_most", []).append(now["behaviour/cut"])
            name = "entropy_least_while_flat" if flat else "entropy_least_otherwise"
            far.setdefault(name, []).append(-now["entropy"] / before["entropy"])
    return {"windows": windows, **{name: round(abs(max(of)), 4) for name, of in sorted(far.items())}}


def main() -> int:
    """Make the runs and say what they raised."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wrong", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--sound", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "behaviour")
    parser.add_argument("--series", type=Path)
    given = parser.parse_args()
    output = given.output.absolute()
    runs, series, sound = [], {}, []
    for names, seeds in ((WRONG, given.wrong), (("right", *EXAMPLES), given.sound)):
        for name in names:
            for seed in seeds:
                steps = make(name, seed, output)
                if name not in WRONG:
                    sound.append(steps)
                runs.append({**found(name, seed, output), "steps": len(steps)})
                if seed == seeds[0]:
                    series[f"{name}-{seed}"] = [
                        {key: round(one[key], 4) for key in READ if key in one} for one in steps
                    ]
    if given.series:
        parts = [
            f'"{name}": [\n' + ",\n".join(map(json.dumps, steps)) + "\n]" for name, steps in series.items()
        ]
        given.series.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    missed = [
        f"{one['run']}-{one['seed']}"
        for one in runs
        if one["run"] in WRONG and one["run"] not in one["alarms"]
    ]
    false = [f"{one['run']}-{one['seed']}" for one in runs if one["run"] not in WRONG and one["alarms"]]
    print(json.dumps({"runs": runs, "missed": missed, "false": false, "sound": extremes(sound)}))
    return bool(missed or false)


if __name__ == "__main__":
    raise SystemExit(main())
