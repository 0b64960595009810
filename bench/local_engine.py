"""Agent turns per second of the local engine: 8 prompts of 300 tokens, 8 samples each, 20 new tokens, tiny
policy.

Run ``python bench/local_engine.py [--threads 2] [--rounds 5] [--deterministic]``; prints one JSON object.
Each round has new prompts, so only the samples of a group share a prefix. ``turns_per_second`` is the median
round; nothing goes over HTTP.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import torch
from tokenizers import Tokenizer, decoders, models

from agl_local.generation.engine import Engine, Request
from agl_local.network.config import ModelConfig
from agl_local.network.sampling import Sampling
from agl_local.policy.folder import Policy, init_model
from agl_local.text.tokenizer import ChatTokenizer

VOCAB, PROMPTS, SAMPLES, PROMPT_TOKENS, NEW_TOKENS = 500, 8, 8, 300, 20


def tiny_policy() -> Policy:
    """Random weights of the demos' shape; the tokenizer only has to name the ids."""
    tokenizer = Tokenizer(models.BPE(vocab={f"t{i}": i for i in range(VOCAB)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    config = ModelConfig(
        hidden_size=128,
        intermediate_size=384,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        vocab_size=VOCAB,
    )
    return Policy(init_model(config, seed=0), ChatTokenizer(tokenizer), config)


def one_round(engine: Engine, seed: int, grouped: bool) -> float:
    """Seconds for all turns; ``grouped``: one request with n samples a prompt, else one request a sample."""
    rng = random.Random(seed)
    prompts = [[rng.randrange(VOCAB) for _ in range(PROMPT_TOKENS)] for _ in range(PROMPTS)]
    started = time.perf_counter()
    futures = []
    for prompt in prompts:
        for sample in range(1 if grouped else SAMPLES):
            sampling = Sampling(max_tokens=NEW_TOKENS, seed=sample)
            futures.append(engine.submit(Request(prompt, sampling, n=SAMPLES if grouped else 1)))
    tokens = sum(len(c.token_ids) for future in futures for c in future.result())
    if tokens != PROMPTS * SAMPLES * NEW_TOKENS:
        raise RuntimeError(f"the round gave {tokens} tokens")
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deterministic", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    turns = PROMPTS * SAMPLES
    options = {"threads": args.threads, "deterministic": args.deterministic}
    with Engine(tiny_policy(), slots=64, max_len=512, **options) as engine:
        one_round(engine, 0, grouped=True)
        single = [one_round(engine, 2 * i + 1, grouped=False) for i in range(args.rounds)]
        grouped = [one_round(engine, 2 * i + 2, grouped=True) for i in range(args.rounds)]
    print(
        json.dumps(
            {
                "turns_per_second": round(turns / statistics.median(single), 1),
                "turns_per_second_best": round(turns / min(single), 1),
                "turns_per_second_n8": round(turns / statistics.median(grouped), 1),
                "new_tokens_per_second": round(turns * NEW_TOKENS / statistics.median(single)),
                **options,
                "rounds": args.rounds,
            }
        )
    )


if __name__ == "__main__":
    main()
