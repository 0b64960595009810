"""Tokens computed in an update of groups with long shared prompts: sharing none, or each beginning once.

    python bench/tree/run.py [--rounds 3]

Three shapes of a step, through the local driver's own update, with the demo's policy:

- ``router``: 16 prompts of 60 to 80 tokens, 8 answers each, behind 30 tokens that all prompts share;
- ``few_shot``: the same behind 330 tokens;
- ``agent``: 8 tasks × 8 rollouts of 4 turns, unmerged: each call's prompt repeats the turns before it.

Both ways must find the same gradient norm, or the run fails. ``target``: at least half as many tokens where
prompts are long (``few_shot`` and ``agent``). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from agentlightning.types import Row, Segment
from agl_local.policy.folder import load_policy
from tree.training import HEADERS, measure, router_rows

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "examples" / "calc_x" / "policy"
TARGET = 2.0
TASKS, SAMPLES, TURNS = 8, 8, 4
LONG = ("few_shot", "agent")


def agent_rows(vocab: int) -> list[Row]:
    """A row for each call of agents whose prompts hold all turns before: 120 tokens of system and task,
    answers of 10 to 30 tokens, tool results of 20.
    """
    rng = random.Random(1)

    def ids(count: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(count)]

    rows, system = [], ids(100)
    for task in range(TASKS):
        first = system + ids(20)
        for sample in range(SAMPLES):
            seen, advantage = list(first), rng.choice((-1.0, 1.0))
            for turn in range(TURNS):
                start, answer = len(seen), ids(rng.randint(10, 30))
                seen += answer
                mask = [0] * start + [1] * len(answer)
                weight = 1.0 / (TASKS * SAMPLES * TURNS * len(answer))
                name = f"{task}-{sample}-{turn}"
                rows.append(
                    Row(
                        row_id=name,
                        rollout_id=f"{task}-{sample}",
                        policy="bench",
                        token_ids=list(seen),
                        mask=mask,
                        advantages=[advantage * on for on in mask],
                        logprobs=[-1.0 * on for on in mask],
                        weights=[weight * on for on in mask],
                        versions=[on - 1 for on in mask],
                        segments=[Segment(name, start, len(mask), advantage)],
                    )
                )
                seen += ids(20)
    return rows


def main() -> int:
    """Measure the shapes, print, and fail if sharing saves too little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="updates of each way; the median counts")
    asked = parser.parse_args()
    policy = load_policy(POLICY)
    vocab = min(policy.config.vocab_size, 400)
    shapes = {name: router_rows(vocab, header) for name, header in HEADERS.items()}
    shapes["agent"] = agent_rows(vocab)
    found = {}
    for name, rows in shapes.items():
        found[name] = measure(policy.model, rows, ["none", "trie"], asked.rounds, micro_tokens=8192)
        print(f"{name}: {found[name]['times_fewer_tokens']} times fewer tokens computed", file=sys.stderr)
    met = all(found[name]["times_fewer_tokens"] >= TARGET for name in LONG)
    fewer = {name: one["times_fewer_tokens"] for name, one in found.items()}
    print(json.dumps({"times_fewer_tokens": fewer, "target": TARGET, "met": met, "shapes": found}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
