"""Kill -9 drill of the Tinker API's two ends: the server, and a run with the driver ``tinker``.

`make drill-tinker`. First the official client trains against `agl tinker serve` while the server is killed
with SIGKILL again and again, and started anew on the same folder and port: every loss must be, bit for bit,
that of a run in which nothing was killed. A step made twice, or lost, would change all losses after it. Then
`agl train` trains calc_x, killed and gone on with by `--resume`, while its server is killed too: each step
must be reported once, and the optimizer on the server must have counted as many steps as the run has. The
exit status is 1 unless all of that holds and every kill was made.

The last line is one JSON object. ``steps_twice`` and ``steps_lost`` compare, in both parts, the steps that
the optimizer on the server has counted with those that the client or the run was told of; a step that was
reported twice, and a checkpoint that was there before a kill and not after it, count too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "examples" / "calc_x" / "policy"
AGL = str(Path(sys.executable).with_name("agl"))
RUN = "drill"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def end_of(log: Path) -> str:
    """The last of what a process wrote."""
    return log.read_text(encoding="utf-8")[-3000:]


class Server:
    """`agl tinker serve` on one folder and one port, as often as it must be started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.kills = folder, free_port(), 0
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        command = [AGL, "tinker", "serve", "--policy", str(POLICY), "--name", "calc_x", "--max-len", "512"]
        command += [
            "--state",
            str(self.folder / "state"),
            "--port",
            str(self.port),
            "--threads",
            "1",
            "--slots",
            "32",
        ]
        with (self.folder / "server.log").open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, encoding="utf-8")
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise SystemExit(f"the server did not start: {end_of(self.folder / 'server.log')}")

    def kill(self) -> None:
        """SIGKILL, at once."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.kills += 1

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)


# ------------------------------------------------------------------------------------------ the client's part
def train(url: str, steps: int, pause: float) -> None:
    """In a process of its own: train by the official client, always one step ahead, and print each loss."""
    import tinker
    from tinker import types

    service = tinker.ServiceClient(base_url=url, api_key="tml-drill")
    client = service.create_lora_training_client(base_model="calc_x", rank=4, seed=1).result()
    draw = random.Random(0)
    waiting: list[tuple[Any, Any]] = []

    def settle() -> None:
        backward, step = waiting.pop(0)
        loss = backward.result().metrics["loss:sum"]
        step.result()
        print(json.dumps(loss), flush=True)

    for _ in range(steps):
        ids = [draw.randrange(3, 500) for _ in range(12)]
        datum = types.Datum(
            model_input=types.ModelInput.from_ints(ids[:-1]),
            loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * 11},  # type: ignore[dict-item]
        )
        backward = client.forward_backward([datum], "cross_entropy")
        waiting.append((backward, client.optim_step(types.AdamParams(learning_rate=1e-3))))
        if len(waiting) > 1:
            settle()
        time.sleep(pause)
    while waiting:
        settle()


def losses(folder: Path, steps: int, kills: int, draw: random.Random) -> tuple[list[float], int, int]:
    """The losses of one training, how often its server was killed, and the optimizer's steps there."""
    server = Server(folder)
    server.start()
    output = (folder / "losses.jsonl").open("w+", encoding="utf-8")
    client = subprocess.Popen(
        [
            sys.executable,
            __file__,
            "--client",
            server.url,
            "--steps",
            str(steps),
            "--pause",
            "0.15" if kills else "0",
        ],
        stdout=output,
        env={**os.environ, "TINKER_TELEMETRY": "0"},
    )
    met = 0
    try:
        while client.poll() is None:
            time.sleep(0.02)
            lines = (folder / "losses.jsonl").read_text(encoding="utf-8").count("\n")
            if server.kills < kills and lines > met:  # it is at work again
                time.sleep(draw.uniform(0.0, 0.5))
                met = (folder / "losses.jsonl").read_text(encoding="utf-8").count("\n")
                server.kill()
                server.start()
    finally:
        client.kill()
        server.stop()
    output.seek(0)
    [model] = (folder / "state" / "models").glob("*/*/model.pt")
    return [json.loads(line) for line in output], server.kills, optimizer_steps(model)


# --------------------------------------------------------------------------------------------- the run's part
def run(folder: Path, steps: int, kills: int, draw: random.Random) -> dict[str, Any]:
    """A run of calc_x whose trainer and server are killed ``kills`` times each."""
    server = Server(folder)
    server.start()
    command = [AGL, "train", "--config", "examples/calc_x/tinker.yaml", "--run", RUN]
    settings = {
        "training.steps": steps,
        "agent.timeout_seconds": 300,
        "training.batch_size": 2,
        "training.recipe.group_size": 4,
        "environment.val": "null",
        "backend.options.base_url": server.url,
        "backend.options.save_every": 1,
        "backend.options.rank": 4,
        "output": folder / "runs",
    }
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    place = folder / "runs" / RUN / "checkpoints"
    trained, lost, began = 0, 0, finished(place)
    while True:
        with (folder / "train.log").open("a", encoding="utf-8") as log:
            again = ["--resume"] if (folder / "runs" / RUN).is_dir() else []
            trainer = subprocess.Popen(
                [*command, *again],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "TINKER_API_KEY": "tml-drill"},
            )
        while trainer.poll() is None and finished(place) <= began:
            time.sleep(0.1)
        until = time.monotonic() + draw.uniform(0.0, 1.5)
        while trainer.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        if server.kills < kills and trainer.poll() is None:
            server.kill()
            server.start()
        if trainer.poll() is None and trained < kills:
            time.sleep(draw.uniform(0.0, 1.0))
            trainer.send_signal(signal.SIGKILL)
            trained += 1
        status = trainer.wait()
        now = finished(place)
        lost += now < began
        began = now
        if status == 0:
            break
        if status > 0:
            raise SystemExit(f"the run failed: {end_of(folder / 'train.log')}")
    server.stop()
    reports = [
        json.loads(line)
        for line in (folder / "runs" / RUN / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    position = json.loads((place / f"step_{steps:06d}" / "position.json").read_text(encoding="utf-8"))
    model = position["path"].removeprefix("tinker://").split("/")
    session, _, number = model[0].split(":")
    saved = folder / "state" / "models" / session / number / "weights" / f"{model[2]}.pt"
    steps_of = [report["step"] for report in reports]
    return {
        "steps": steps,
        "reported": len(steps_of),
        "reported_twice": len(steps_of) - len({*steps_of}),
        "never_reported": len({*range(steps)} - {*steps_of}),
        "optimizer_steps": int(sum(report["metrics"]["optimizer_steps"] for report in reports)),
        "optimizer_steps_on_server": optimizer_steps(saved),
        "checkpoints_lost": lost,
        "client_kills": trained,
        "server_kills": server.kills,
    }


def optimizer_steps(saved: Path) -> int:
    """How many steps the optimizer in a file of the server has made."""
    import torch

    return int(torch.load(saved, weights_only=True)["optimizer"]["state"][0]["step"].item())


def finished(place: Path) -> int:
    """Steps of the last position that is written."""
    return max((int(path.parent.name[5:]) for path in place.glob("step_*/position.json")), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, default=0.0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.client:
        sys.path.pop(0)  # this folder has modules that are called as others are
        train(asked.client, asked.steps, asked.pause)
        return 0
    draw, folders = (
        random.Random(asked.seed),
        [Path(tempfile.mkdtemp(prefix="drill-tinker-")) for _ in range(3)],
    )
    reference, _, _ = losses(folders[0], asked.steps, 0, draw)
    found, kills, counted = losses(folders[1], asked.steps, asked.kills, draw)
    same = sum(a == b for a, b in zip(reference, found, strict=False))
    part = {"steps": len(found), "same": same, "optimizer_steps_on_server": counted, "server_kills": kills}
    # between two kills a run makes one step or more, depending on how busy the machine is
    made = run(folders[2], 3 * asked.kills + 4, asked.kills, draw)
    more = [counted - len(found), made["optimizer_steps_on_server"] - made["optimizer_steps"]]
    told: dict[str, Any] = {
        "client_kills": made["client_kills"],
        "server_kills": kills + made["server_kills"],
        "steps_twice": sum(max(0, n) for n in more) + made["reported_twice"],
        "steps_lost": sum(max(0, -n) for n in more) + made["never_reported"] + made["checkpoints_lost"],
        "losses": part,
        "run": made,
    }
    whole = same == len(found) == asked.steps and not told["steps_twice"] and not told["steps_lost"]
    met = (kills, made["server_kills"], made["client_kills"])
    whole = whole and met == (asked.kills,) * 3  # a run that ended before all kills shows less than it says
    for folder in folders if whole else ():
        shutil.rmtree(folder)
    print(json.dumps(told))
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
