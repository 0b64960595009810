"""Two recipes of the tinker cookbook, the wheel as it is, against `agl tinker serve`: do they run, do they
learn?

    python bench/tinker/cookbook.py        (in the environment `tinker`: `make test-tinker-cookbook`)

``sl_loop`` and ``rl_loop`` look for a tokenizer and for data sets by their names on the hub. They run here in
a folder that has these names, with a policy of bytes made by this script, chats of its own, and one kind of
sum whose answer is always the same. The policy is first taught to answer sums by any digit: else no answer
would earn a reward, and nothing could be learned by it. The last line is JSON; exit status 1 unless both have
run and learned.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from agl_local.network.config import ModelConfig
from agl_local.policy.folder import Policy, init_model, save_policy
from agl_local.text.tokenizer import ChatTokenizer

ROOT = Path(__file__).resolve().parents[2]
NAME = "Qwen/Qwen3-8B-Base"
"""A name that the cookbook knows: it chooses the form of the prompt by it."""
ANSWER = 3
SAMPLES = 128
"""Answers of a step of rl_loop, each of which earns 0 or 1."""
FEW = 5
"""Steps at either end whose mean rewards are compared: three standard errors apart is learned."""
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
SHOWN = (
    "User: How many r's are in strawberry?"
    + SUFFIX
    + "\n\nAssistant: Let's spell the word out and number all the "
    "letters: 1) s 2) t 3) r 4) a 5) w 6) b 7) e 8) r 9) r 10) y. We have r's at positions 3, 8, and 9. "
    "\\boxed{3}\n\n"
)
"""What rl_loop begins each prompt with."""
COLOURS = ("red", "green", "blue", "brown", "black", "white")


def tokenizer() -> ChatTokenizer:
    """256 bytes and an end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    end = backend.token_to_id("<|end|>")
    return ChatTokenizer(backend, chat_template="", eos_ids=[end], config={"eos_token": "<|end|>"})


def question(draw: random.Random) -> str:
    first = draw.randrange(ANSWER + 1)
    return f"What is {first} + {ANSWER - first}?"


def taught(folder: Path, steps: int) -> None:
    """Write a policy that answers a sum by any digit, in the form that is asked for."""
    text, draw = tokenizer(), random.Random(0)
    config = ModelConfig(
        hidden_size=64, intermediate_size=192, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
        vocab_size=257, max_positions=1024,
    )  # fmt: skip
    model = init_model(config, 0).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        rows, lengths = [], []
        for _ in range(16):
            asked = f"{SHOWN}User: {question(draw)}{SUFFIX}\n\nAssistant:"
            prompt = text.encode(asked)
            rows.append(prompt + text.encode(f" \\boxed{{{draw.randrange(10)}}}\n\nUser:"))
            lengths.append(len(prompt))
        ids = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])
        logits = model.logits(model.hidden(ids[:, :-1]))
        wanted = ids[:, 1:].clone()
        for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            wanted[i, : length - 1] = -100
            wanted[i, len(row) - 1 :] = -100
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"teaching: step {step}, loss {float(loss.detach()):.3f}", file=sys.stderr)
    save_policy(Policy(model.eval(), text, config), folder)


def data(folder: Path) -> None:
    """The two data sets, by the names and columns of those on the hub."""
    draw = random.Random(1)
    sums, chats = folder / "openai" / "gsm8k", folder / "HuggingFaceH4" / "no_robots" / "data"
    for place in (sums, chats):
        place.mkdir(parents=True)
    (sums / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: train.jsonl\n---\n",
        encoding="utf-8",
    )
    rows = [{"question": question(draw), "answer": f"It is {ANSWER}.\n#### {ANSWER}"} for _ in range(400)]
    (sums / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    said = []
    for _ in range(400):
        colour = draw.choice(COLOURS)
        said.append(
            [
                {"role": "user", "content": f"Which colour is the {colour} door?"},
                {"role": "assistant", "content": f"The {colour} door is {colour}."},
            ]
        )
    (chats / "train.jsonl").write_text(
        "".join(json.dumps({"messages": chat}) + "\n" for chat in said), encoding="utf-8"
    )


def recipe(python: str, folder: Path, url: str, name: str, **settings: Any) -> list[dict[str, Any]] | None:
    """Run a recipe of the wheel and return what it logged, a mapping a step; ``None``: it ended badly."""
    environment = {
        **os.environ, "TINKER_API_KEY": "tml-local", "TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1", "HOME": str(folder), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    environment.pop("PYTHONPATH", None)
    log = folder / f"log-{name}"
    given = {"base_url": url, "model_name": NAME, "log_path": log, **settings}
    command = [
        python,
        "-m",
        f"tinker_cookbook.recipes.{name}",
        *(f"{key}={value}" for key, value in given.items()),
    ]
    if subprocess.run(command, cwd=folder, env=environment, stdout=sys.stderr).returncode:
        return None
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def main() -> int:
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "tinker_cookbook"],
        stdout=subprocess.PIPE,
        check=True,
    )
    told = run(made.stdout.decode().split()[-1])
    print(json.dumps(told))
    return 0 if told["learned"] == len(told["recipes"]) else 1


def run(python: str) -> dict[str, Any]:
    """Run both recipes by the interpreter ``python``; what came of it."""
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="cookbook-") as scratch:
        folder = Path(scratch)
        taught(folder / NAME, 70)
        data(folder)
        command = [sys.executable, "-m", "_agl_main", "tinker", "serve", "--policy", str(folder / NAME)]
        command += ["--name", NAME, "--state", str(folder / "state"), "--port", "0", "--slots", "64"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as server:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["base_url"]
            try:
                chats = recipe(
                    python, folder, url, "sl_loop", batch_size=16, max_steps=12, learning_rate=3e-3
                )
                sums = recipe(
                    python, folder, url, "rl_loop", batch_size=SAMPLES // 16, group_size=16, max_tokens=24,
                    max_steps=30, learning_rate=5e-3, loss_fn="importance_sampling",
                )  # fmt: skip
            finally:
                server.terminate()
    told: dict[str, Any] = {
        "recipes": ["sl_loop", "rl_loop"], "ran": (chats is not None) + (sums is not None), "learned": 0
    }  # fmt: skip
    if chats is not None:
        nll = [step["train_mean_nll"] for step in chats if "train_mean_nll" in step]
        told["learned"] += nll[-1] < nll[0] - 0.5
        told["nll"] = [round(nll[0], 3), round(nll[-1], 3)]
    if sums is not None:
        reward = [step["reward/total"] for step in sums if "reward/total" in step]
        first, last = (sum(part) / FEW for part in (reward[:FEW], reward[-FEW:]))
        error = math.sqrt((first * (1 - first) + last * (1 - last)) / (FEW * SAMPLES))
        told["learned"] += last - first > 3 * error
        told["reward"], told["standard_error"] = [round(first, 3), round(last, 3)], round(error, 3)
    return told


if __name__ == "__main__":
    sys.exit(main())
