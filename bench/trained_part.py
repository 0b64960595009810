"""What it takes to train all of a pretrained policy, all but its embedding, or LoRA of rank 16.

    python bench/record.py trained_part -- python bench/trained_part.py

Two updates with the 64 rows of ``local_update.py``, then two checkpoints, each part in a process of its own.
``peak_mb`` is the process's largest resident size, in MB of 10⁶ bytes; ``checkpoint_mb`` what the first
checkpoint takes on the disk, ``next_mb`` what the second adds.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from local_update import make_rows

from agentlightning.types import Recipe
from agl_local.network.lora import Lora
from agl_local.policy.checkpoint import save_checkpoint
from agl_local.policy.fetch import fetch
from agl_local.policy.folder import Policy, load_policy
from agl_local.training.freeze import trained_values
from agl_local.training.trainable import Trainable
from agl_local.training.update import Updater

PARTS: dict[str, tuple[tuple[str, ...], Lora | None]] = {
    "all": ((), None),
    "freeze": (("*embed_tokens*",), None),
    "lora": ((), Lora(rank=16, alpha=32)),
}


def checkpoints(policy: Policy, updater: Updater) -> list[float]:
    """MB on the disk after the first checkpoint and after the second."""
    sizes = []
    with tempfile.TemporaryDirectory() as folder:
        for step in (1, 2):
            save_checkpoint(folder, step=step, version=step, policy=policy, trainer=updater.state_dict())
            files = [path.stat() for path in Path(folder).rglob("*") if path.is_file()]
            sizes.append(sum({file.st_ino: file.st_size for file in files}.values()) / 1e6)
    return sizes


def measure(part: str, name: str) -> dict[str, int]:
    """One part, in this process."""
    torch.set_num_threads(1)
    policy = load_policy(fetch(name).path)
    freeze, lora = PARTS[part]
    trainable = Trainable.of(policy.model, freeze, lora)
    trainable.adapt(policy.model, seed=0)
    updater = Updater(policy.model, Recipe(name="r"), lr=1e-5, threads=1, micro_tokens=2048)
    for _ in range(2):
        updater.update(make_rows(0), 0)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    first, both = checkpoints(policy, updater)
    return {
        "trained": trained_values(policy.model),
        "peak_mb": round(peak),
        "checkpoint_mb": round(first),
        "next_mb": round(both - first),
    }


def main() -> None:
    """Measure each part in a child, and print all as one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policy", default="smollm2", help="folder, or a name of `agl policy list`")
    parser.add_argument("--part", choices=PARTS, help="only this one, in this process")
    given = parser.parse_args()
    if given.part:
        print(json.dumps(measure(given.part, given.policy)))
        return
    found = {}
    for part in PARTS:
        command = [sys.executable, __file__, "--policy", given.policy, "--part", part]
        done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
        found[part] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
