"""The driver `tinker` trains calc_x's agent on two servers: our own by the newest client, skyrl-tx by the one
that fits.

    python bench/tinker/learning.py [--steps 12] [--servers agl skyrl-tx]      (part of `make test-tinker`)

Environments are those of scripts/environments.toml: `tinker`, `tinker_lowest` (the client of skyrl-tx 0.3)
and `skyrl_tx`. skyrl-tx knows no Qwen2, so its policy is the demo's without the biases of attention, as a
Llama. It compiles each shape that it meets, and draws as many tokens as an answer may have, whatever ends it:
so it gets batches of one size, answers of one bound, and half of the steps. The last line is JSON;
``gap`` is the largest difference between the logprob of a token that the server sampled and the one that it
computes for training.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "examples" / "calc_x" / "policy"
TRIES = 600


def environment(name: str) -> Path:
    """The interpreter of an environment, made if need be."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), name], stdout=subprocess.PIPE, check=True
    )
    return Path(made.stdout.decode().split()[-1])


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def process(command: list[str], url: str, log: Path, folder: Path, **more: str) -> Iterator[None]:
    """A server while it is needed; it is ready when it says what it can do."""
    with log.open("w", encoding="utf-8") as output:
        server = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={**os.environ, **more},
            start_new_session=True,  # skyrl-tx starts processes that would outlive it
        )
    try:
        for _ in range(TRIES):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/api/v1/get_server_capabilities").close()
                break
            if server.poll() is not None:
                told = log.read_text(encoding="utf-8")
                raise SystemExit(f"the server ended: {told[-3000:]}")
            time.sleep(0.5)
        else:
            raise SystemExit(f"the server at {url} does not say what it can do: {log}")
        yield
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


@contextlib.contextmanager
def own(folder: Path) -> Iterator[tuple[str, Path, str, Path]]:
    """Address, policy, the server's name of it, and the interpreter of the run."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "_agl_main",
        "tinker",
        "serve",
        "--policy",
        str(POLICY),
        "--name",
        "calc_x",
    ]
    command += ["--state", str(folder / "state"), "--port", str(port), "--max-len", "512", "--slots", "64"]
    with process(command, url, folder / "server.log", folder):
        yield url, POLICY, "calc_x", Path(sys.executable)


@contextlib.contextmanager
def skyrl(folder: Path) -> Iterator[tuple[str, Path, str, Path]]:
    """As :func:`own`."""
    policy, port, python = without_biases(folder / "llama"), free_port(), environment("skyrl_tx")
    url = f"http://127.0.0.1:{port}"
    command = [str(python), "-m", "tx.tinker.api", "--base-model", str(policy), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--checkpoints-base", str(folder / "checkpoints")]
    command += ["--database-url", f"sqlite:///{folder / 'tx.db'}?timeout=600"]
    shapes = {"sample_max_num_sequences": 32, "train_micro_batch_size": 8}
    command += ["--backend-config", json.dumps({"max_lora_adapters": 4, "max_lora_rank": 32, **shapes})]
    more = {"UV_NO_PROJECT": "1", "UV_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    more |= {"VIRTUAL_ENV": str(python.parents[1]), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    with process(command, url, folder / "server.log", folder, **more):
        yield url, policy, str(policy), environment("tinker_lowest")


def without_biases(folder: Path) -> Path:
    """The demo's policy as a Llama, which has no biases of attention."""
    shutil.copytree(POLICY, folder)
    kept = {
        name: one
        for name, one in load_file(POLICY / "model.safetensors").items()
        if not name.endswith(".bias")
    }
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["use_sliding_window"]
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


SERVERS = {"agl": own, "skyrl-tx": skyrl}


def train(server: str, steps: int, tasks: int) -> dict[str, Any]:
    """One run, and what came of it."""
    with tempfile.TemporaryDirectory(prefix="tinker-calc-x-") as scratch:
        folder = Path(scratch)
        with SERVERS[server](folder) as (url, policy, name, python):
            settings = {
                "training.steps": steps, "environment.val.limit": tasks, "backend.policy": policy,
                "backend.options.base_url": url, "backend.options.base_model": name,
                "backend.options.train_unembed": "false", "agent.timeout_seconds": 1200,
                "backend.options.max_tokens": 32,
                "output": folder / "runs",
            }  # fmt: skip
            command = [str(python), "-m", "_agl_main", "train", "--config", "examples/calc_x/tinker.yaml"]
            command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
            given = {**os.environ, "TINKER_API_KEY": "tml-local", "TINKER_TELEMETRY": "0"}
            subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr, env=given)
            [run] = (folder / "runs").iterdir()
            summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
            reports = [
                json.loads(line)["metrics"]
                for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
            ]
    totals = summary["totals"]
    return {
        "before": summary["reward_before"], "after": summary["reward_after"], "steps": len(reports),
        "calls": int(totals["calls"]), "calls_exact": int(totals["calls_exact"]),
        "steps_lost": steps - int(sum(report["optimizer_steps"] for report in reports)),
        "gap": max(report["logprob_gap_max"] for report in reports),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Train calc_x over the Tinker API.")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--tasks", type=int, default=64, help="held-out tasks")
    parser.add_argument("--servers", nargs="+", choices=[*SERVERS], default=[*SERVERS])
    asked = parser.parse_args()
    found = {
        name: train(name, max(2, asked.steps // 2) if name == "skyrl-tx" else asked.steps, asked.tasks)
        for name in asked.servers
    }
    print(json.dumps({"servers": found}))
    whole = all(
        one["calls"] == one["calls_exact"] and not one["steps_lost"] and one["gap"] < 1e-3
        for one in found.values()
    )
    return 0 if whole and all(one["after"] > one["before"] for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
