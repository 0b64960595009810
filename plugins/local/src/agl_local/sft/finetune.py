"""Fine-tune a policy on chats in memory: the function behind ``agl sft``.

The loss of a step is the mean cross-entropy over the trained tokens of its batch (``training.sft``).
Invariants: every chat is used once in an epoch; the same policy, chats, settings and number of threads give
the same parameters bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch

from agentlightning.types import UsageError
from agl_local.network.lora import Lora, adapt, adapted, check_rank
from agl_local.network.model import LanguageModel
from agl_local.network.quantized import Kind
from agl_local.policy.folder import DTYPES, Policy
from agl_local.policy.weights import not_finite
from agl_local.sft.chats import Chat, EncodedChats, encode
from agl_local.training.freeze import frozen, trained_values
from agl_local.training.sft import ChatSample, sft_loss, train_sft


class SftSettingsError(UsageError, ValueError):
    """A setting of supervised fine-tuning that cannot be used."""


class NotFinite(UsageError, ArithmeticError):
    """A fine-tuning that changed nothing, or ended in a policy that computes nothing."""


@dataclass(frozen=True)
class SftSettings:
    """How to fine-tune. AdamW with a linear warm-up and a cosine to zero (``training.fit``)."""

    epochs: int = 3
    lr: float = 5e-5
    batch_size: int = 16
    """Sequences of one optimizer step."""
    max_len: int | None = None
    """Tokens of a sequence; longer chats are left out and counted. ``None``: what the policy allows, at most
    2048.
    """
    warmup: float = 0.1
    """Share of the steps with a rising learning rate."""
    weight_decay: float = 0.0
    max_grad_norm: float | None = 1.0
    micro_batch_tokens: int = 4096
    """Tokens of one forward pass: memory and speed, not the result."""
    seed: int = 0
    """Seed of the order of the chats."""
    freeze: tuple[str, ...] = ()
    """Patterns of names of parameters that are not trained (``training.freeze``)."""
    lora: Lora | None = None
    """Train small matrices beside frozen weights; what is written is an adapter (``policy.adapters``)."""
    group: int = 1
    """So many chats with the same first message follow each other, as far as there are: what they have in
    common, such as a long system message, is computed once for all that one forward pass takes.
    """
    dtype: str = "float32"
    """Precision of the weights while training. Below float32 only beside ``lora``, whose matrices are
    float32: an update of the weights themselves would be rounded away.
    """
    device: str = "cpu"
    quantize: Kind | None = None
    """In what the frozen matrices of the layers are kept beside ``lora``; the adapter belongs to these."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "micro_batch_tokens", "group"):
            if getattr(self, name) < 1:
                raise SftSettingsError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not (self.lr > 0 and math.isfinite(self.lr)):
            raise SftSettingsError(f"lr must be positive, got {self.lr}")
        if self.max_len is not None and self.max_len < 2:
            raise SftSettingsError(f"max_len must be at least 2, got {self.max_len}")
        if not 0 <= self.warmup <= 1:
            raise SftSettingsError(f"warmup is a share between 0 and 1, got {self.warmup}")
        if self.dtype not in DTYPES:
            raise SftSettingsError(f"dtype {self.dtype!r} is not one of {', '.join(sorted(DTYPES))}")
        if self.dtype != "float32" and self.lora is None:
            raise SftSettingsError(f"dtype {self.dtype} needs lora, whose matrices stay float32")
        if self.quantize is not None and self.quantize not in get_args(Kind):
            raise SftSettingsError(f"quantize {self.quantize!r} is not one of {', '.join(get_args(Kind))}")
        if self.quantize is not None and self.lora is None:
            raise SftSettingsError(f"quantize {self.quantize} needs lora: it is for matrices that are frozen")
        if self.lora is not None and self.freeze:
            raise SftSettingsError("lora freezes all weights: leave freeze out")


@dataclass(frozen=True)
class SftStep:
    """Progress after a step. ``loss`` is the step's, in nats a token."""

    step: int
    steps: int
    epoch: int
    loss: float
    positions: int
    """Positions computed so far: tokens of prompts and answers, equal beginnings in a micro-batch once."""
    seconds: float


@dataclass
class SftReport:
    """What a fine-tuning did. Losses are mean nats per trained token."""

    chats: int
    """Chats trained on."""
    sequences: int
    parameters: int
    """Trained numbers of the policy."""
    tokens: int
    """Trained tokens of an epoch."""
    too_long: int
    """Chats left out because of ``max_len``."""
    steps: int
    steps_skipped: int = 0
    """Steps without an update, because loss or gradient was not finite."""
    positions: int = 0
    loss_first: float = math.nan
    loss: float = math.nan
    """Mean over the last tenth of the steps."""
    seconds: float = 0.0
    """Seconds of training, validation excluded."""
    val_chats: int = 0
    val_too_long: int = 0
    val_losses: list[float] = field(default_factory=list)
    """Validation loss before training and after each epoch."""


def finetune(
    policy: Policy,
    chats: Sequence[Chat],
    settings: SftSettings,
    *,
    val: Sequence[Chat] = (),
    progress: Callable[[SftStep], None] = lambda step: None,
    validated: Callable[[int, float], None] = lambda epoch, loss: None,
    workers: int = 1,
) -> SftReport:
    """Train ``policy`` in place on ``chats``, where it is and in its precision. Parameters that require no
    gradient are left as they are; with ``lora`` all are, and the matrices beside them are trained.

    ``progress`` is called after each step; ``validated(epoch, loss)`` before training (epoch 0) and after
    each epoch, if there are ``val`` chats. ``workers``: micro-batches that are computed at a time. Raise
    :class:`~agl_local.sft.chats.ChatDataError`, :class:`SftSettingsError`,
    :class:`~agl_local.training.freeze.FreezeError` or :class:`~agl_local.network.lora.LoraError` before
    anything is trained, and :class:`NotFinite` where the numbers of the training were not finite.
    """
    max_len, positions = longest(policy, settings), policy.config.max_positions
    data = encode(policy.tokenizer, chats, max_len, positions)
    held_out = encode(policy.tokenizer, val, max_len, positions) if val else None
    if settings.lora is not None and not adapted(policy.model):
        check_rank(policy.model, settings.lora)
        adapt(policy.model, settings.lora, settings.seed)
    with frozen(policy.model, settings.freeze):
        return _Finetuning(policy.model, data, held_out, settings, progress, validated, workers).run()


def longest(policy: Policy, settings: SftSettings) -> int:
    """Return the number of tokens that a sequence may have."""
    most = policy.config.max_positions
    if settings.max_len is not None and settings.max_len > most:
        raise SftSettingsError(f"max_len is {settings.max_len}; the policy has {most} positions")
    return settings.max_len or min(most, 2048)


class _Finetuning:
    """One fine-tuning, its report, and the clock that stops while it validates."""

    def __init__(
        self,
        model: LanguageModel,
        data: EncodedChats,
        held_out: EncodedChats | None,
        settings: SftSettings,
        progress: Callable[[SftStep], None],
        validated: Callable[[int, float], None],
        workers: int,
    ) -> None:
        self.model, self.data, self.held_out, self.settings = model, data, held_out, settings
        self.progress, self.validated, self.workers = progress, validated, workers
        self.steps_of_epoch = math.ceil(len(data.samples) / settings.batch_size)
        self.report = SftReport(
            chats=data.chats,
            sequences=len(data.samples),
            parameters=trained_values(model),
            tokens=data.trained,
            too_long=len(data.too_long),
            steps=self.steps_of_epoch * settings.epochs,
            val_chats=held_out.chats if held_out else 0,
            val_too_long=len(held_out.too_long) if held_out else 0,
        )
        self.began = 0.0

    def run(self) -> SftReport:
        settings, steps = self.settings, self.report.steps
        self._validate(0)
        self.began = time.perf_counter()
        last = train_sft(
            self.model,
            self._batches(),
            steps=steps,
            lr=settings.lr,
            warmup=math.ceil(settings.warmup * steps),
            weight_decay=settings.weight_decay,
            clip_norm=settings.max_grad_norm,
            micro_tokens=settings.micro_batch_tokens,
            workers=self.workers,
            progress=self._after_step,
        )
        self._refuse_not_finite(last["loss_last"])
        return self.report

    def _refuse_not_finite(self, loss: float) -> None:
        """Raise :class:`NotFinite` for a policy that is what it was, or that can be used no more. ``loss``:
        of the last step.
        """
        wrong = not_finite(dict(self.model.named_parameters()))
        if self.report.steps_skipped == self.report.steps:
            raise NotFinite(
                f"none of the {self.report.steps} steps had a finite loss and gradient, so nothing was "
                f"trained: {wrong or 'the weights are finite, and too large to compute with'}; choose "
                "another policy, or a dtype with a larger range"
            )
        if wrong or not math.isfinite(loss):
            raise NotFinite(
                f"training ended with the loss {loss}: {wrong or 'the weights have become too large'}; "
                f"choose a lower lr than {self.settings.lr:g}"
            )

    def _batches(self) -> Iterator[list[ChatSample]]:
        """Yield each sample once an epoch, in an order of its own for each epoch."""
        samples, size = self.data.samples, self.settings.batch_size
        random = torch.Generator().manual_seed(self.settings.seed)
        while True:
            order = torch.randperm(len(samples), generator=random).tolist()
            if self.settings.group > 1:
                order = self._grouped(order, random)
            for first in range(0, len(order), size):
                yield [samples[i] for i in order[first : first + size]]

    def _grouped(self, order: Sequence[int], random: torch.Generator) -> list[int]:
        """Return ``order`` with samples of equal beginnings in groups, these in an order of their own."""
        size, beginnings = self.settings.group, self.data.beginnings
        own: dict[str, list[int]] = {}
        for i in order:
            own.setdefault(beginnings[i], []).append(i)
        groups = [found[at : at + size] for found in own.values() for at in range(0, len(found), size)]
        return [i for g in torch.randperm(len(groups), generator=random).tolist() for i in groups[g]]

    def _after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        report = self.report
        report.seconds += time.perf_counter() - self.began
        if step == 0:
            report.loss_first = metrics["loss_last"]
        report.loss, report.steps_skipped = metrics["loss"], int(metrics["steps_skipped"])
        report.positions = int(metrics["positions"])
        epoch, rest = divmod(step + 1, self.steps_of_epoch)
        self.progress(
            SftStep(
                step + 1,
                report.steps,
                epoch + (rest > 0),
                metrics["loss_last"],
                report.positions,
                report.seconds,
            )
        )
        if rest == 0:
            self._validate(epoch)
        self.began = time.perf_counter()

    def _validate(self, epoch: int) -> None:
        if self.held_out is not None:
            loss = sft_loss(self.model, self.held_out.samples, self.settings.micro_batch_tokens)
            self.report.val_losses.append(loss)
            self.validated(epoch, loss)
