"""Direct preference optimisation: learn from pairs of answers, without rewards (arXiv:2305.18290).

    margin = beta · ( [log π(chosen) − log ref(chosen)] − [log π(rejected) − log ref(rejected)] )
    loss   = −(1 − e)·log σ(margin) − e·log σ(−margin)          mean over pairs; e: label smoothing, section 3
    of the note
                                                                 ericmitchell.ai/cdpo.pdf

``log π(answer)`` is the sum over the answer's tokens, its end token included. Invariant: at the reference the
margin is 0 and the loss is log 2, whatever the pairs.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .fit import Progress, fit, shuffled
from .logprobs import token_logprobs
from .model import LanguageModel
from .pack import micro_batches, pack
from .sft import Messages, Sample, Tools, encode_answer
from .tokenizer import ChatTokenizer


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, the first one preferred."""

    chosen: Sample
    rejected: Sample


def encode_pair(
    tokenizer: ChatTokenizer,
    prompt: Messages,
    chosen: Mapping[str, Any],
    rejected: Mapping[str, Any],
    tools: Tools | None = None,
) -> Pair:
    """A pair from chat messages: ``chosen`` and ``rejected`` are assistant messages after ``prompt``."""
    samples = []
    for answer in (chosen, rejected):
        before, after = encode_answer(tokenizer, prompt, answer, tools)
        samples.append(Sample((*before, *after), tuple(range(len(before), len(before) + len(after)))))
    return Pair(*samples)


def dpo_loss(
    chosen: Tensor,
    rejected: Tensor,
    chosen_ref: Tensor,
    rejected_ref: Tensor,
    beta: float,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Per-pair losses [P] and margins [P] from log probabilities of whole answers [P]."""
    margin = beta * ((chosen - chosen_ref) - (rejected - rejected_ref))
    return -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin), margin


def answer_logprobs(model: LanguageModel, samples: Sequence[Sample]) -> Tensor:
    """Log probability of the trained part of each sample [S], in one forward pass."""
    packed = pack([s.ids for s in samples], [s.trained for s in samples]).to(model.device)
    each = token_logprobs(model, packed).logprobs
    return each.new_zeros(len(samples)).index_add(0, packed.rows, each)


def dpo_backward(
    model: LanguageModel,
    reference: LanguageModel,
    pairs: Sequence[Pair],
    *,
    beta: float,
    smoothing: float = 0.0,
    micro_tokens: int = 4096,
) -> dict[str, float]:
    """Add the gradient of the mean loss over ``pairs``. Returns ``loss``, ``margin`` (mean), ``accuracy``
    (margin > 0).
    """
    sums = torch.zeros(3, device=model.device)
    # A pair is never split: its loss needs both answers. Two answers of the longer one's length bound its
    # tokens.
    lengths = [2 * max(len(pair.chosen.ids), len(pair.rejected.ids)) for pair in pairs]
    for group in micro_batches(lengths, micro_tokens):
        samples = [pairs[i].chosen for i in group] + [pairs[i].rejected for i in group]
        with torch.no_grad():
            chosen_ref, rejected_ref = answer_logprobs(reference, samples).chunk(2)
        chosen, rejected = answer_logprobs(model, samples).chunk(2)
        loss, margin = dpo_loss(chosen, rejected, chosen_ref, rejected_ref, beta, smoothing)
        (loss.sum() / len(pairs)).backward()  # type: ignore[no-untyped-call]
        sums += torch.stack([loss.detach().sum(), margin.detach().sum(), (margin > 0).sum()])
    loss_mean, margin_mean, accuracy = (sums / len(pairs)).tolist()
    return {"loss": loss_mean, "margin": margin_mean, "accuracy": accuracy}


def train_dpo(
    model: LanguageModel,
    pairs: Sequence[Pair],
    *,
    steps: int,
    batch_size: int = 16,
    lr: float = 1e-4,
    beta: float = 0.1,
    smoothing: float = 0.0,
    warmup: int = 0,
    weight_decay: float = 0.0,
    clip_norm: float | None = 1.0,
    seed: int = 0,
    micro_tokens: int = 4096,
    reference: LanguageModel | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Train ``model`` in place; ``reference`` is a copy of it as it is now unless given. Returns the last
    step's metrics.
    """
    reference = copy.deepcopy(model) if reference is None else reference
    reference.requires_grad_(False).eval()
    batches = shuffled(pairs, batch_size, seed)

    def backward(step: int) -> dict[str, float]:
        return dpo_backward(
            model, reference, next(batches), beta=beta, smoothing=smoothing, micro_tokens=micro_tokens
        )

    return fit(
        model,
        backward,
        steps=steps,
        lr=lr,
        warmup=warmup,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        what="DPO",
        progress=progress,
    )
