"""The local driver on one card: that it is exact there, and how fast it is.

Run ``python -m bench.gpu.run [--size tiny] [--stages env,parity] [--out FOLDER] [--budget 330]`` (``make
gpu``). Each stage of ``stages.py`` is a process of its own that leaves a file; one that fails or runs out of
its time says so, and the others go on. The last line is one JSON object. Without a card all runs on the
pretend device, on tiny networks: ``card``, seconds and gigabytes are then null.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.gpu import pretend

LIMITS = {"env": 30, "parity": 60, "decode": 80, "update": 70, "sync": 50, "demo": 80, "driver": 80}
"""Seconds that a stage may take on a card, in the order of what matters most."""


def one(name: str, device: str, size: str, out: Path, seconds: float) -> dict[str, Any]:
    """What a stage found; with ``error`` if it failed."""
    command = [sys.executable, "-m", "bench.gpu.stages", name]
    command += ["--device", device, "--size", size, "--out", str(out)]
    environment = pretend.environment() if device == "pretend" else {**os.environ}
    began = time.perf_counter()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", timeout=seconds
        )
        error = done.stderr[-1500:] if done.returncode else None
    except subprocess.TimeoutExpired:
        error = f"not done within {seconds:.0f} s"
    file = out / f"{name}.json"
    found: dict[str, Any] = {"ok": False, "error": error}
    if error is None:
        found = json.loads(file.read_text(encoding="utf-8"))
    found["took_s"] = round(time.perf_counter() - began, 1) if device != "pretend" else None
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{name}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def summary(card: str | None, size: str, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The last line: the engine's step with 8 conversations, an update that shares beginnings, the gap in
    float32. ``size``: of the networks.
    """
    decode, update = found.get("decode", {}), found.get("update", {}).get("shared", {})
    peaks = [one["peak_gb"] for one in (decode, update) if one.get("peak_gb") is not None]
    return {
        "card": card,
        "device": "cuda" if card else "pretend",
        "size": size,
        "stages": found,
        "ok": bool(found) and all(one["ok"] for one in found.values()),
        "decode_ms": decode.get("engine_8"),
        "update_s": update.get("seconds"),
        "peak_gb": max(peaks, default=None),
        "parity": found.get("parity", {}).get("float32", {}).get("trainer"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", choices=("full", "tiny"), help="default: full on a card, else tiny")
    parser.add_argument("--stages", default=",".join(LIMITS))
    parser.add_argument("--out", type=Path, help="where each stage leaves its file")
    parser.add_argument("--budget", type=float, default=330.0, help="seconds of all stages on a card")
    given = parser.parse_args()
    card = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    device, size = ("pretend", "tiny") if card is None else ("cuda", given.size or "full")
    if card is None:
        print(
            "There is no card. The stages run on a pretend device, which computes on the CPU and refuses "
            "what CUDA refuses, with tiny networks: they show that all of it runs exactly, and no speed.",
            file=sys.stderr,
        )
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = given.out or Path(folder)
        out.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        for name in given.stages.split(","):
            left = given.budget - (time.perf_counter() - began) if card else float("inf")
            if left < 10:
                found[name] = {"ok": False, "error": "not begun: no time was left"}
                continue
            limit = min(left, LIMITS[name]) if card else 600.0
            found[name] = one(name, device, size, out.resolve(), limit)
    print(json.dumps(summary(card, size, found)))
    return 0 if all(one["ok"] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
