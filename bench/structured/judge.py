"""Whether the calls of a cell were served, and whether the driver can train them.

*Trained*: credit left out none of them, every token of an answer has a finite recorded logprob, the trainer's
forward gives the recorded logprobs of all tokens that it can recompute (on the local engine all, under masks
that it makes again from the records), and every other token has a finite importance weight. A grammar or
``top_p`` only takes tokens away, so such a weight, the probability under the whole policy over the recorded
one, is at most 1 but for rounding.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from agentlightning.credit.assign import assign
from agentlightning.recipes import GRPO
from agentlightning.types import Record, Row
from agl_local.policy.folder import Policy
from agl_local.text.grammar import GrammarCompiler
from agl_local.training.batch import check_row, tokens_of
from agl_local.training.score import score_tokens
from agl_local.training.tally import Tally

RECIPE = GRPO(temperature=1.0)
ROUNDING = 1e-2
"""By how much a weight of at most 1 may exceed 1."""


def judge(
    records: list[Record], policy: Policy, *, wanted: int, gap: float, narrowed: bool
) -> dict[str, Any]:
    """What became of the calls of ``records``. ``wanted``: calls that a cell makes. ``gap``: nats between
    engine and trainer, at most. ``narrowed``: its distribution is the policy's with tokens taken away.
    """
    calls = [call for record in records for call in record.calls]
    failed = [call.error for call in calls if call.status != "ok"]
    batch = assign(records, RECIPE, version=0)
    trained = sum(ledger.trained for ledger in batch.ledgers)
    tally = measure(policy, batch.rows)
    found = tally.metrics(with_kl=False)
    weights = torch.cat(tally.off_policy) if tally.off_policy else torch.ones(0)
    finite = all(math.isfinite(p) for call in calls for p in call.logprobs or (math.nan,))
    compared = found.get("logprob_gap_tokens", 0.0) + len(weights)
    sound = (
        finite
        and compared == sum(row.trained_tokens for row in batch.rows) > 0
        and found.get("logprob_gap_max", 0.0) < gap
        and bool(weights.isfinite().all())
        and not (narrowed and len(weights) and float(weights.max()) > 1 + ROUNDING)
    )
    return {
        "calls": len(calls),
        "masks_made_again": sum(call.grammar is not None for call in calls),
        "weighed": sum(ledger.off_policy for ledger in batch.ledgers),
        "served": len(calls) >= wanted and not failed,
        "trained": sound and trained == len(calls) >= wanted,
        "gap": float(f"{found.get('logprob_gap_max', 0.0):.1e}"),
        "weight_mean": round(float(weights.mean()), 4) if len(weights) else None,
        "weight_max": round(float(weights.max()), 4) if len(weights) else None,
        "failed": failed[:1],
        "left_out": {k: v for ledger in batch.ledgers for k, v in ledger.left_out.items()},
    }


def measure(policy: Policy, rows: list[Row]) -> Tally:
    """The rows as the driver would see them before its first step."""
    eos = policy.tokenizer.eos_ids
    grammars = GrammarCompiler(policy.tokenizer, policy.config.vocab_size)
    tally = Tally(0, RECIPE.off_policy_cap)
    for row in rows:
        check_row(row, policy.config.vocab_size, eos_ids=eos, grammars=grammars)
        tokens = tokens_of([row], eos, grammars=grammars).to("cpu", torch.float32)
        tally.measure(tokens, score_tokens(policy.model, tokens))
    return tally
