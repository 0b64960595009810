"""One LoRA adapter over the shared base: losses, gradients and steps, as a client of the API asks for them.

Invariant: a call is checked whole before anything is computed, so a call that is refused leaves gradients and
weights as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentlightning.types.base import RequestRefused
from agl_local.network.lora import Lora, adapt, adapted, matrices, starting_point
from agl_local.policy.folder import Policy
from agl_local.training.logprobs import token_logprobs
from agl_local.training.optim import clip_and_step, make_adamw
from agl_local.training.pack import Packed, Padded, micro_batches
from agl_tinker.server.losses import LOSSES, bounds_of, inputs_of
from agl_tinker.server.wire import Datum, TrainingCall, write_output

ALPHA = 32.0
"""The adapter's product is multiplied by ``ALPHA / rank``: the constant of the hosted service's adapters."""
MICRO_TOKENS = 4096
"""Positions of one forward pass at most."""
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


class LoraConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``lora_config`` of ``create_model``. ``train_unembed`` is taken and has no effect (docs/tinker.md)."""

    rank: int = 32
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True

    def lora(self) -> Lora:
        """The settings of agl-local's adapters. Raises RequestRefused."""
        targets = (*(_ATTENTION if self.train_attn else ()), *(_MLP if self.train_mlp else ()))
        if not targets:
            why = "give train_attn or train_mlp: this server has no adapter of the output layer"
            raise RequestRefused(400, "lora", f"nothing would be trained: {why}")
        try:
            return Lora(rank=self.rank, alpha=ALPHA, targets=targets)
        except ValueError as error:
            raise RequestRefused(400, "lora", str(error)) from None


class AdamParams(msgspec.Struct, frozen=True, kw_only=True):
    """``adam_params`` of ``optim_step``."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """0: no clipping."""


class Adapter:
    """``base`` with an adapter of its own, drawn by ``config.seed``; the base's weights are shared, and never
    change.
    """

    def __init__(self, base: Policy, config: LoraConfig) -> None:
        self.config = config
        self.network = starting_point(base.model)
        adapt(self.network, config.lora(), config.seed or 0)
        self._vocab_size, self._max_len = base.config.vocab_size, base.config.max_positions
        self._optimizer = make_adamw(self.network, lr=1e-4, betas=(0.9, 0.95), eps=1e-12)

    def forward_backward(self, call: TrainingCall) -> bytes:
        """The logprobs of all targets and ``loss:sum``; the gradients are added up, unless the call is
        ``forward_only``.
        """
        bounds = bounds_of(call.loss_fn, call.config)
        inputs = [self._checked(i, datum, call.loss_fn, bounds) for i, datum in enumerate(call.data)]
        lengths = [[len(datum.tokens)] for datum in call.data]
        found: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(call.data)
        total = 0.0
        for group in micro_batches([datum.tokens for datum in call.data], lengths, MICRO_TOKENS):
            with torch.set_grad_enabled(not call.forward_only):
                packed = pack(
                    [call.data[i].tokens for i in group], [inputs[i]["target_tokens"] for i in group]
                )
                logprobs = token_logprobs(self.network, packed).logprobs
                given = {
                    name: torch.cat([inputs[i][name].flatten() for i in group]) for name in inputs[group[0]]
                }
                loss = LOSSES[call.loss_fn](logprobs, given)
            if not call.forward_only:
                loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
            sizes = [inputs[i]["target_tokens"].numel() for i in group]
            for i, part in zip(group, torch.split(logprobs.detach(), sizes), strict=True):
                found[i] = part.reshape(inputs[i]["target_tokens"].shape).numpy()
        return write_output(found, {"loss:sum": total})

    def optim_step(self, params: AdamParams) -> dict[str, float]:
        """One step of AdamW with the gradients added up so far, which are dropped; its metrics."""
        for group in self._optimizer.param_groups:
            group.update(
                lr=params.learning_rate, betas=(params.beta1, params.beta2), eps=params.eps,
                weight_decay=params.weight_decay,
            )  # fmt: skip
        done = clip_and_step(self.network, self._optimizer, params.grad_clip_norm or None, 0.0)
        return {"grad_norm": done.grad_norm, "steps_skipped": float(not done.stepped)}

    def state(self, optimizer: bool) -> dict[str, Any]:
        """Matrices and, if asked for, the moments of AdamW."""
        weights = {name: matrix.clone() for name, matrix in matrices(adapted(self.network)).items()}
        return {"weights": weights, **({"optimizer": self._optimizer.state_dict()} if optimizer else {})}

    def load(self, state: Mapping[str, Any], optimizer: bool) -> None:
        """Become the adapter of ``state``. Gradients are dropped. Raises RequestRefused for one of other
        shapes, or without moments where they are asked for.
        """
        mine, saved = matrices(adapted(self.network)), state["weights"]
        if {name: m.shape for name, m in saved.items()} != {name: m.shape for name, m in mine.items()}:
            raise RequestRefused(400, "other-adapter", "the saved adapter has another rank or other layers")
        if optimizer and "optimizer" not in state:
            raise RequestRefused(
                400, "no-optimizer", "these weights were saved for sampling, without optimizer"
            )
        with torch.no_grad():
            for name, matrix in mine.items():
                matrix.copy_(saved[name])
        self._optimizer = make_adamw(self.network, lr=1e-4)
        if optimizer:
            self._optimizer.load_state_dict(state["optimizer"])
        self._optimizer.zero_grad(set_to_none=True)

    def _checked(self, i: int, datum: Datum, loss: str, bounds: Mapping[str, float]) -> dict[str, Tensor]:
        """The inputs of datum ``i`` as tensors, all of the shape of its targets. Raises RequestRefused."""

        def refuse(why: str) -> RequestRefused:
            return RequestRefused(400, "datum", f"datum {i}: {why}")

        size = len(datum.tokens)
        if not 1 <= size <= self._max_len:
            raise refuse(f"model_input has {size} tokens; this model takes 1 to {self._max_len}")
        if "target_tokens" not in datum.inputs:
            raise refuse("loss_fn_inputs lacks target_tokens")
        targets = datum.inputs["target_tokens"].astype(np.int64)
        if targets.ndim not in (1, 2) or len(targets) != size:
            raise refuse(f"target_tokens has the shape {targets.shape} for {size} tokens of model_input")
        for what, ids in (("model_input", np.array(datum.tokens)), ("target_tokens", targets)):
            if ids.min() < 0 or ids.max() >= self._vocab_size:
                raise refuse(f"{what} has ids outside 0..{self._vocab_size - 1}")
        found = {"target_tokens": torch.from_numpy(targets)}
        for name in (*inputs_of(loss), *bounds):
            value = datum.inputs.get(name)
            if value is None and name not in bounds and name != "weights":
                raise refuse(f"the loss {loss} needs loss_fn_inputs[{name!r}]")
            if value is None:
                value = np.full(targets.shape, bounds.get(name, 1.0), np.float32)
            if value.shape != targets.shape:
                raise refuse(f"{name} has the shape {value.shape}, target_tokens {targets.shape}")
            if not np.isfinite(value).all():
                raise refuse(f"{name} holds a number that is not finite")
            found[name] = torch.from_numpy(value.astype(np.float32))
        return found


def pack(sequences: Sequence[Sequence[int]], targets: Sequence[Tensor]) -> Packed:
    """Sequences whose position i predicts ``targets[i]`` ([N] or [N, K]), whatever token follows it."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    ids = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.long)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    positions = [torch.arange(len(one)).repeat_interleave(one[0].numel()) for one in targets]
    rows = torch.arange(len(targets)).repeat_interleave(torch.tensor([len(p) for p in positions]))
    flat = torch.cat(positions)
    return Packed(
        inputs=Padded(ids, lengths),
        needed=int(lengths.sum()),
        rows=rows,
        positions=flat,
        at=rows * ids.shape[1] + flat,
        targets=torch.cat([one.flatten() for one in targets]),
    )


def prompt_logprobs(network: Any, prompt: Sequence[int]) -> list[float]:
    """The logprob of each token of a prompt. The first has no token before it, so its logprob is NaN."""
    with torch.no_grad():
        packed = pack([prompt[:-1]], [torch.tensor(prompt[1:])]) if len(prompt) > 1 else None
        known = [] if packed is None else token_logprobs(network, packed).logprobs.tolist()
    return [float("nan"), *known]
