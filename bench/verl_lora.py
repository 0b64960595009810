"""LoRA with verl on a CPU: it learns, goes on after its end, and what it serves is what it exports.

    python bench/verl_lora.py [--steps 16] [--rank 8] [--lr 1e-3]        (makes the environment `verl`)

The calc_x agent is trained for half of the steps, then by a second command (``--resume``) for the rest. Then
the frozen weights of the last checkpoint are compared with the policy that the run began with, bit for bit,
and the logprobs that the engine sampled with in the last evaluation with those that transformers computes
with the exported policy. The last line is one JSON object; exit status 1 where one of these is not so, or
where with 10 steps or more the reward did not rise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentlightning.store import SQLiteStore
from agentlightning.types import Call

ROOT = Path(__file__).resolve().parents[1]
POLICY = ROOT / "examples" / "calc_x" / "policy"
RUN, EDGE, LONG = "lora", 3, 10
CLOSE = 1e-4
"""Largest difference of two logprobs that are computed in another order."""

LOOK = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
folder, policy, calls = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text())
(saved,) = sorted(folder.glob("checkpoints/global_step_*/actor/model_world_size_1_rank_0.pt"))[-1:]
state = {n: getattr(t, "_local_tensor", t) for n, t in torch.load(saved, weights_only=False).items()}
began = load_file(policy / "model.safetensors")
small = {n: t for n, t in state.items() if "lora_" in n}
frozen = {n.removeprefix("base_model.model.").replace(".base_layer", ""): t
          for n, t in state.items() if n not in small}
model = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)
far = []
with torch.no_grad():
    for prompt, response, logprobs in calls:
        found = model(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
        far += [abs(float(found[len(prompt) + t - 1, token]) - logprobs[t])
                for t, token in enumerate(response)]
print(json.dumps({
    "frozen_moved": max(float((frozen[n] - t.float()).abs().max()) for n, t in began.items()),
    "trained": sum(t.numel() for t in small.values()),
    "parameters": sum(t.numel() for t in began.values()),
    "matrices_moved": max(float(t.abs().max()) for n, t in small.items() if "lora_B" in n),
    "tokens_compared": len(far), "logprob_difference": max(far),
}))
"""
"""Asked of the interpreter that has verl: its checkpoints hold tensors of its own kind."""


def train(python: str, folder: Path, asked: argparse.Namespace, steps: int) -> None:
    """One command of the run, up to ``steps``."""
    lora = {"rank": asked.rank, "alpha": 2 * asked.rank}
    settings = {
        "environment.headroom": "{}", "environment.val.limit": 64, "output": folder,
        "backend.options.python": python, "backend.options.lr": asked.lr,
        "backend.options.lora": json.dumps(lora),
    }  # fmt: skip
    command = [sys.executable, "-m", "_agl_main", "train", "--config", "examples/calc_x/verl.yaml",
               "--run", RUN, "--steps", str(steps)]  # fmt: skip
    command += ["--resume"] if (folder / RUN).is_dir() else []
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)


async def served(place: Path, version: int) -> list[Call]:
    """Calls that the engine answered with that version, sampled from the plain distribution."""
    store = SQLiteStore(place)
    try:
        found: list[Call] = []
        for rollout in await store.query_rollouts(run_id=RUN, limit=100_000):
            calls = await store.query_calls(rollout.rollout_id)
            fresh = [call for call in calls if call.policy_version == version and call.logprobs]
            found += [call for call in fresh if call.sampling.get("temperature", 1.0) == 1.0]
        return found
    finally:
        await store.close()


def main() -> int:
    """Train twice, compare, tell."""
    parser = argparse.ArgumentParser(description="LoRA with verl on a CPU.")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.001)
    asked = parser.parse_args()
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "verl"], stdout=subprocess.PIPE, check=True
    )
    python = made.stdout.decode().split()[-1]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="verl-lora-") as scratch:
        folder = Path(scratch)
        train(python, folder, asked, asked.steps // 2)
        train(python, folder, asked, asked.steps)
        run = folder / RUN
        lines = [
            json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        calls = asyncio.run(served(run / "store.sqlite", asked.steps))
        kept = folder / "calls.json"
        kept.write_text(
            json.dumps([(call.prompt_ids, call.response_ids, call.logprobs) for call in calls]),
            encoding="utf-8",
        )
        command = [python, "-c", LOOK, str(run), str(POLICY), str(kept)]
        looked = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1]
    rewards = [line["metrics"]["reward_mean"] for line in lines]
    first, last = (sum(part) / len(part) for part in (rewards[:EDGE], rewards[-EDGE:]))
    told: dict[str, Any] = {
        "reward_first": round(first, 4),
        "reward_last": round(last, 4),
        "steps": len(rewards),
        "rank": asked.rank,
        "lr": asked.lr,
        **json.loads(looked),
        "logprob_gap_max": max(line["metrics"]["logprob_gap_max"] for line in lines),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    print(json.dumps(told))
    same = told["frozen_moved"] == 0 and told["matrices_moved"] > 0 and told["logprob_difference"] < CLOSE
    whole = [line["step"] for line in lines] == list(range(asked.steps)) and told["tokens_compared"] > 0
    return 0 if same and whole and (asked.steps < LONG or last > first) else 1


if __name__ == "__main__":
    sys.exit(main())
