"""Stands for verl's child: speaks the channel as the real one does, trains nothing.

    python fake_verl.py -m agl_verl.inside.main        (``FAKE_VERL``: what it does at ``step:what``)

``die``: SIGKILL itself; ``fail``: end with a traceback; ``lose``: say that its engine has died; ``overflow``:
log a gradient that is not finite; ``pause``: give up its calls while it updates, ``sleep``: without a word
when it is over; ``die-asleep``: it never is. It starts a process with a group of its own first, as Ray does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from agl_verl.process.channel import Channel
from agl_verl.rows import unpack
from agl_verl.shape import KINDS


def main() -> None:
    json.loads(sys.stdin.readline())
    subprocess.Popen(["sleep", "600"], process_group=0)
    threading.Thread(target=until_end, daemon=True).start()
    channel = Channel()
    addresses = os.environ.get("FAKE_ADDRESSES", "http://127.0.0.1:1").split()
    channel.ask("stage", what="Python runs; importing verl")
    channel.ask("ready", addresses=addresses, step=0)
    done = 0
    while (order := channel.order())["do"] == "load":
        done = int(order["path"].rpartition("_")[2])
        channel.ask("loaded", step=done)
    for step in range(done + 1, order["steps"] + 1):
        train(channel, order, step)
    channel.ask("finished")
    time.sleep(600)


def train(channel: Channel, order: dict[str, Any], step: int) -> None:
    """One step, as verl would."""
    rows = unpack(channel.ask("collect", step=step))
    at, _, what = os.environ.get("FAKE_VERL", "0:").partition(":")
    if what in ("pause", "sleep", "die-asleep"):
        channel.ask("pause")
    if int(at) == step:
        act(channel, what)
    channel.ask("measured", logprob_gap_max=1e-6 * step)
    if step % order["save_every"] == 0 or step == order["steps"]:
        weights = Path(order["checkpoints"]) / f"global_step_{step}" / "actor" / "huggingface"
        weights.mkdir(parents=True)
        (weights / "model.safetensors").write_text(f"weights of {step}")
        for part in ("actor", "critic"):
            (weights.parents[1] / part).mkdir(exist_ok=True)
            for kind in KINDS:
                (weights.parents[1] / part / f"{kind}_world_size_1_rank_0.pt").touch()
    told = {"actor/entropy": 8.0, "actor/pg_loss": 0.5, "rows": len(rows.rows)}
    if int(at) == step and what == "overflow":
        told["actor/grad_norm"] = float("inf")
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("a") as log:
        log.write(json.dumps({"step": step, "data": told}) + "\n")
    if what == "pause":
        channel.ask("resume")


def act(channel: Channel, what: str) -> None:
    if what in ("die", "die-asleep"):
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "fail":
        raise RuntimeError("CUDA out of memory, say")
    if what == "lose":
        channel.ask("lost", what="engine at http://127.0.0.1:1 has died (ActorDiedError)")
        time.sleep(600)


def until_end() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
