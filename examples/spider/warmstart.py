"""Build the small start policy from nothing: a Qwen2-shaped network taught by the scripted teacher.

    python -m spider.warmstart [--out FOLDER] [--seed N] [--steps N]

Loss on the assistant turns only, AdamW with a cosine. It uses one thread and writes the policy folder and its
card; the same command gives the same weights on the same machine.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from agl_local.config import ModelConfig
from agl_local.model import CausalLM
from agl_local.policy import Policy, init_model, save_policy
from agl_local.tokenizer import ChatTokenizer
from spider.evaluate import POLICY, table
from spider.teacher import Example, examples
from spider.tokenizer import build_tokenizer

STEPS = 450
WRITES, CHECKS, REWRITES = 72, 24, 32
"""Rows of each step. Writing is the hard part, and correcting is writing once more."""
LEARNING_RATE = 2e-3
WARM_UP = 30
WEIGHT_DECAY = 0.01
CLIP = 1.0
HELD_OUT = 480
"""Questions the card's figures are measured on."""
CARD = Path(__file__).resolve().parent / "card.md"

Row = tuple[list[int], int]
"""Token ids of a prompt and its answer, and the length of the prompt."""


def config(tokenizer: ChatTokenizer) -> ModelConfig:
    """The shape of the policy: 2 layers, hidden 128, 4 heads on 2 key-value heads of 32, untied."""
    return ModelConfig(
        hidden_size=128,
        intermediate_size=384,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        vocab_size=tokenizer.vocab_size,
        max_positions=2048,
        tied=False,
        eos_token_ids=tokenizer.eos_ids,
    )


def row(tokenizer: ChatTokenizer, example: Example) -> Row:
    """An example as tokens; the answer ends with the end token."""
    prompt = tokenizer.apply(example.messages)
    messages = [*example.messages, {"role": "assistant", "content": example.reply}]
    whole = tokenizer.render(messages, add_generation_prompt=False)
    ids = tokenizer.encode(whole.rstrip("\n"))
    if ids[: len(prompt)] != prompt or ids[-1] not in tokenizer.eos_ids:
        raise ValueError(f"the chat template does not extend its own prompt: {whole!r}")
    return ids, len(prompt)


def batches(tokenizer: ChatTokenizer, seed: int) -> Iterator[list[list[Row]]]:
    """The rows of each step, in micro-batches of similar length so that little is padding."""
    stream = examples(seed)
    while True:
        chosen: list[Example] = []
        wanted = [WRITES, CHECKS, REWRITES]
        while any(wanted):
            for place, example in enumerate(next(stream)):
                if example is not None and wanted[place]:
                    wanted[place] -= 1
                    chosen.append(example)
        rows = sorted((row(tokenizer, example) for example in chosen), key=lambda r: len(r[0]))
        yield [rows[i : i + 32] for i in range(0, len(rows), 32)]


def loss(model: CausalLM, rows: list[Row]) -> tuple[Tensor, int]:
    """Summed negative log-likelihood of the answer tokens of ``rows``, and how many there are."""
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids, _ in rows], batch_first=True)
    columns = torch.arange(ids.shape[1] - 1)
    start = torch.tensor([prompt - 1 for _, prompt in rows])[:, None]
    stop = torch.tensor([len(ids) - 1 for ids, _ in rows])[:, None]
    chosen = (columns >= start) & (columns < stop)
    logits = model.logits(model.hidden(ids[:, :-1])[chosen])
    return cross_entropy(logits, ids[:, 1:][chosen], reduction="sum"), int(chosen.sum())


def rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def build(seed: int, steps: int = STEPS, log_every: int = 50) -> Policy:
    """Train a fresh policy for ``steps`` steps."""
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    shape = config(tokenizer)
    model = init_model(shape, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    begin = time.perf_counter()
    for step, micro_batches in enumerate(islice(batches(tokenizer, seed), steps)):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * rate(step, steps)
        optimizer.zero_grad()
        tokens = sum(len(ids) - prompt for rows in micro_batches for ids, prompt in rows)
        total = 0.0
        for rows in micro_batches:
            summed, _ = loss(model, rows)
            (summed / tokens).backward()  # type: ignore[no-untyped-call]
            total += summed.item() / tokens
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if log_every and (step + 1) % log_every == 0:
            print(
                f"step {step + 1}/{steps}  loss {total:.4f}  {time.perf_counter() - begin:.0f} s", flush=True
            )
    return Policy(model.eval(), tokenizer, shape)


def main() -> None:
    """Build, save, evaluate, and write the card with what was measured."""
    parser = argparse.ArgumentParser(prog="python -m spider.warmstart", description="Build the start policy.")
    parser.add_argument("--out", type=Path, default=POLICY, help="folder to write (default: the shipped one)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    begin = time.process_time()
    policy = build(arguments.seed, arguments.steps)
    seconds = time.process_time() - begin
    save_policy(policy, arguments.out)
    measured = table(policy, HELD_OUT)
    card = CARD.read_text(encoding="utf-8").format(
        parameters=sum(parameter.numel() for parameter in policy.model.parameters()),
        vocabulary=policy.tokenizer.vocab_size,
        n=HELD_OUT,
        table=measured,
        seed=arguments.seed,
        steps=arguments.steps,
        seconds=seconds,
    )
    (arguments.out / "README.md").write_text(card, encoding="utf-8")
    print(measured)


if __name__ == "__main__":
    main()
