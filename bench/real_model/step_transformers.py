"""A training step as one writes it with transformers: whole sequences, the same loss, AdamW."""

from __future__ import annotations

import torch
import transformers
from batch import BETAS, CLIP, EPS, LR, MAX_NORM, Sampled, passes


class Subject:
    """Forward passes over a few sequences each, logits of the answers only, gradients added up."""

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=0.0, fused=True
        )
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"

    def update(self, sequences: list[Sampled]) -> dict[str, float]:
        """Train one step on the sequences; return the gradient's norm."""
        trained = sum(len(one["answer"]) for one in sequences)
        for part in passes(sequences):
            (self._loss(part) / trained).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm}

    def _loss(self, rows: list[Sampled]) -> torch.Tensor:
        """PPO's clipped objective, summed over the answers' tokens. All rows have equal lengths."""
        ids = torch.tensor([one["prompt"] + one["answer"] for one in rows])
        answers = torch.tensor([one["answer"] for one in rows])
        keep = answers.shape[1]
        logits = self.model(ids, use_cache=False, logits_to_keep=keep + 1).logits[:, :-1]
        logp = torch.log_softmax(logits, -1).gather(2, answers[..., None])[..., 0]
        ratio = (logp - torch.tensor([one["logprobs"] for one in rows])).exp()
        advantages = torch.tensor([one["advantage"] for one in rows])[:, None]
        surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
        return -surrogate.sum()
