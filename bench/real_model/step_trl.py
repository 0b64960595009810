"""The step of TRL's GRPOTrainer on prepared sequences: its loss and its optimizer, without its generation."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import transformers
import trl
from batch import BETAS, CLIP, EPS, LR, MAX_NORM, Sampled, passes
from datasets import Dataset

ROWS = 4
"""What the trainer is told, and does not use: its inputs are given."""


class Subject:
    """A trainer whose inputs are given, as its own generation would have made them.

    Gradient checkpointing, which TRL has on by default, is off: it saves memory and costs a second forward
    pass, and no other subject has it. ``bnpo`` is the loss that divides by the number of trained tokens.
    """

    def __init__(self, folder: str, threads: int) -> None:
        torch.set_num_threads(threads)
        settings = trl.GRPOConfig(
            output_dir=tempfile.mkdtemp(prefix="agl-trl-"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            model_init_kwargs={"dtype": torch.float32},
            learning_rate=LR,
            adam_beta1=BETAS[0],
            adam_beta2=BETAS[1],
            adam_epsilon=EPS,
            weight_decay=0.0,
            lr_scheduler_type="constant",
            max_grad_norm=MAX_NORM,
            epsilon=CLIP,
            beta=0.0,
            loss_type="bnpo",
            per_device_train_batch_size=ROWS,
            num_generations=ROWS,
            report_to=[],
        )
        self.trainer = trl.GRPOTrainer(
            model=folder,
            reward_funcs=_unused,
            args=settings,
            train_dataset=Dataset.from_list([{"prompt": "unused"}] * ROWS),
        )
        self.trainer.create_optimizer()
        self.trainer.model.train()
        self.version = (
            f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}"
        )

    def update(self, sequences: list[Sampled]) -> dict[str, float]:
        """Train one step on the sequences; return the gradient's norm."""
        trainer = self.trainer
        parts = passes(sequences)
        trainer.current_gradient_accumulation_steps = len(parts)
        for part in parts:
            trainer.compute_loss(trainer.model, _inputs(part)).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), MAX_NORM))
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm}


def _inputs(rows: list[Sampled]) -> dict[str, torch.Tensor]:
    """Return what ``GRPOTrainer.compute_loss`` reads. All rows have equal lengths, so nothing is masked."""
    prompts = torch.tensor([one["prompt"] for one in rows])
    answers = torch.tensor([one["answer"] for one in rows])
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": answers,
        "completion_mask": torch.ones_like(answers),
        "advantages": torch.tensor([one["advantage"] for one in rows]),
        "old_per_token_logps": torch.tensor([one["logprobs"] for one in rows]),
    }


def _unused(prompts: list[Any], completions: list[Any], **rest: Any) -> list[float]:
    raise RuntimeError("nothing is generated here, so nothing is rewarded")
