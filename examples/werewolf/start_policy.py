"""Make the policy the CPU demo starts from: ``python -m werewolf.start_policy --out FOLDER --seed 1``.

A Qwen2-shaped network with random weights, and nothing taught: with guided choice it plays any legal move
alike.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from agl_local.network.config import ModelConfig
from agl_local.policy.folder import Policy, init_model, save_policy
from werewolf.tokenizer import build_tokenizer

POLICY = Path(__file__).resolve().parent / "policy"


def start_policy(seed: int = 1) -> Policy:
    """2 layers, hidden 64, 4 heads on 2 key-value heads of 16, untied."""
    tokenizer = build_tokenizer()
    config = ModelConfig(
        hidden_size=64,
        intermediate_size=192,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=tokenizer.vocab_size,
        max_positions=512,
        tied=False,
        eos_token_ids=tokenizer.eos_ids,
    )
    return Policy(init_model(config, seed).eval(), tokenizer, config)


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(prog="python -m werewolf.start_policy", description=__doc__)
    parser.add_argument("--out", type=Path, default=POLICY, help="folder to write (default: the shipped one)")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    policy = start_policy(arguments.seed)
    save_policy(policy, arguments.out)
    parameters = sum(p.numel() for p in policy.model.parameters())
    print(f"{arguments.out}: {parameters:,} parameters, {policy.tokenizer.vocab_size} tokens")


if __name__ == "__main__":
    main()
