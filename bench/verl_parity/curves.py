"""Reward curves of both drivers, three seeds each, and whether their bands overlap."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (1, 2, 3)
CURVE_STEPS = 20


def curve(driver: str, seed: int, python: str, folder: Path) -> list[float]:
    """Training rewards of a run of :data:`CURVE_STEPS` steps."""
    settings = {"training.seed": seed, "training.steps": CURVE_STEPS, "environment.headroom": "{}",
                "environment.val.limit": 8, "output": folder}  # fmt: skip
    if driver == "verl":
        settings["backend.options.python"] = python
    config = ROOT / "examples" / "calc_x" / ("verl.yaml" if driver == "verl" else "cpu.yaml")
    command = [sys.executable, "-m", "_agl_main", "train", "--config", str(config)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=ROOT)
    (run,) = folder.glob(f"*-s{seed}")
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["metrics"]["reward_mean"] for line in lines]


def band(curves: list[list[float]]) -> list[tuple[float, float]]:
    """Mean and half-width of the 95 % interval over the seeds (Student's t), step by step."""
    t = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}[len(curves)]
    return [
        (statistics.fmean(at), t * statistics.stdev(at) / math.sqrt(len(at)))
        for at in zip(*curves, strict=True)
    ]


def overlap(ours: list[list[float]], theirs: list[list[float]]) -> dict[str, Any]:
    """At how many steps the means lie within each other's band, and within the wider one; all curves."""
    a, b = band(ours), band(theirs)
    apart = [(abs(x - y), u, v) for (x, u), (y, v) in zip(a, b, strict=True)]
    return {
        "steps": len(a),
        "steps_within_each_others_band": sum(d <= min(u, v) for d, u, v in apart),
        "steps_within_the_wider_band": sum(d <= max(u, v) for d, u, v in apart),
        "largest_difference": round(max(d for d, _, _ in apart), 4),
        "last_five": {
            name: [round(statistics.fmean(one[-5:]), 4) for one in curves]
            for name, curves in (("local", ours), ("verl", theirs))
        },
        "seeds": list(SEEDS),
        "local": ours,
        "verl": theirs,
    }
