"""What is said of recorded calls: verdicts, and whether the stored ids are those that vLLM sampled.

The proof of the ids does not rest on what vLLM says of them: agl-local computes, from the ids alone and from
the weights served at that time, the logprob of each token, which must be the one that vLLM sampled it with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from agentlightning.credit.verdicts import verdicts
from agentlightning.types import Call, Record
from agl_local.policy.folder import Policy

GAP = 1e-3
"""Nats between float32 kernels of vLLM and of agl-local, at most."""


@dataclass
class Tally:
    """Of a group of records."""

    calls: int = 0
    exact: int = 0
    further: int = 0
    """Choices that were asked for beyond the first of each request."""
    refused: int = 0
    """Requests that got no answer."""
    tokens: int = 0
    gap: float = 0.0
    prompts: int = 0
    prompts_equal: int = 0
    versions: set[int | None] = field(default_factory=set)
    masked: set[str] = field(default_factory=set)
    reasons: list[str] = field(default_factory=list)
    """Why calls are not exact."""

    def add(self, record: Record, policies: Sequence[Policy]) -> Tally:
        """Count a record; ``policies[v - 1]`` is version ``v``."""
        found = verdicts(record)
        for call in record.calls:
            if call.status == "ok" and call.choice == 0:
                self.further += asked_choices(call.request or {}) - 1
            if call.masked:
                self.masked.add(call.masked)
            if call.status != "ok":
                self.refused += 1
                continue
            verdict = found[call.call_id]
            self.calls += 1
            self.exact += verdict.kind == "exact"
            self.versions.add(call.policy_version)
            if verdict.kind != "exact":
                self.reasons.append(f"{call.call_id}: {verdict.kind}: {verdict.reason}")
                continue
            self._recompute(call, policies[(call.policy_version or 0) - 1])
        return self

    def _recompute(self, call: Call, policy: Policy) -> None:
        if call.masked is None:
            self.tokens += len(call.response_ids or ())
            self.gap = max(self.gap, gap(policy, call))
        if call.api == "chat" and "dropped" not in call.edited:
            asked = call.request or {}
            self.prompts += 1
            self.prompts_equal += (
                policy.tokenizer.apply(asked["messages"], asked.get("tools")) == call.prompt_ids
            )

    def merged(self, others: Iterable[Tally]) -> Tally:
        """The sum."""
        whole = Tally()
        for one in (self, *others):
            for name in ("calls", "exact", "further", "refused", "tokens", "prompts", "prompts_equal"):
                setattr(whole, name, getattr(whole, name) + getattr(one, name))
            whole.gap = max(whole.gap, one.gap)
            whole.versions |= one.versions
            whole.masked |= one.masked
            whole.reasons += one.reasons
        return whole

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "calls": self.calls,
            "calls_exact": self.exact,
            "refused": self.refused,
            "tokens_recomputed": self.tokens,
            "logprob_gap_max": float(f"{self.gap:.2e}"),
            "prompts_equal": f"{self.prompts_equal} of {self.prompts}",
            "versions": sorted(v for v in self.versions if v is not None),
            "masked": sorted(self.masked),
        }


def asked_choices(request: dict[str, Any]) -> int:
    """How many choices a request asks for: ``n`` for each prompt."""
    prompt = request.get("prompt")
    return int(request.get("n") or 1) * (len(prompt) if isinstance(prompt, list) else 1)


@torch.no_grad()
def gap(policy: Policy, call: Call) -> float:
    """|agl-local's logprob − the recorded one|, the largest over a call's tokens."""
    prompt, response = call.prompt_ids or [], call.response_ids or []
    logits = policy.model(torch.tensor([[*prompt, *response]]))[0, len(prompt) - 1 : -1].float()
    wanted = torch.log_softmax(logits / call.sampling.get("temperature", 1.0), dim=-1)
    found = wanted.gather(1, torch.tensor(response)[:, None])[:, 0]
    return float((found - torch.tensor(call.logprobs)).abs().max())
