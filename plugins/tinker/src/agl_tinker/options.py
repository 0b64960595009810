"""The options of the driver ``tinker``: what a recipe does not say. Importing this loads no client."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from agentlightning.types import UsageError
from agl_local.option_values import check_numbers, read_as

KEY_VARIABLE = "TINKER_API_KEY"
URL_VARIABLE = "TINKER_BASE_URL"
NOT_INSTALLED = (
    "the client tinker is not installed; in a checkout: `pip install -c constraints.txt "
    '"./plugins/tinker[client]"`'
)


class Refused(UsageError, ValueError):
    """A recipe or a checkpoint that this driver cannot train, and why."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``backend.options`` of a run with the driver ``tinker``. The key is that of ``TINKER_API_KEY``."""

    base_model: str
    """The server's name of the model, e.g. ``Qwen/Qwen3-8B``. ``backend.policy`` is a folder with its
    tokenizer, chat template and ``config.json``; weights are not needed there.
    """
    base_url: str | None = None
    """The server; ``None``: that of ``TINKER_BASE_URL``, else the hosted service."""
    start_from: str | None = None
    """Saved weights that training begins with (``tinker://…``), or that a frozen policy serves."""
    loss: Literal["computed", "native"] = "computed"
    """``computed``: the recipe's loss is computed here from the server's logprobs, and its gradient with
    respect to them sent back, exactly and on any server, by one more forward pass of each step. ``native``:
    the server's own loss, where it has the recipe's (``ppo``, ``cispo``, ``cross_entropy``); other recipes
    are refused.
    """
    rank: int = 32
    """Rank of the adapter."""
    train_attn: bool = True
    """Whether attention has adapters."""
    train_mlp: bool = True
    """Whether the MLPs have adapters."""
    train_unembed: bool = True
    """Whether the output layer has one, where the server offers it."""
    lr: float = 1e-4
    """Learning rate of Adam, constant after ``warmup_steps`` optimizer steps."""
    warmup_steps: int = 0
    """Optimizer steps over which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of Adam's first and second moment."""
    eps: float = 1e-12
    """Added to the root of Adam's second moment."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    max_grad_norm: float | None = 1.0
    """Largest global gradient norm; ``None``: no clipping."""
    max_len: int | None = None
    """Tokens of prompt and answer together; ``None``: what ``config.json`` allows."""
    max_tokens: int | None = None
    """Tokens of one answer at most, whatever an agent asks for, which bounds what a call costs; ``None``:
    what ``max_len`` leaves.
    """
    max_num_seqs: int = 64
    """Answers that are asked of the server at a time."""
    save_every: int = 10
    """Steps between checkpoints, of which one follows the last step; 0: none."""
    keep_checkpoints: int = 2
    """Checkpoints whose position is kept here; what the server saved stays there."""

    @property
    def url(self) -> str | None:
        """The server's address; ``None``: the hosted service."""
        found = self.base_url or os.environ.get(URL_VARIABLE)
        return found.rstrip("/") if found else None

    def __post_init__(self) -> None:
        check_numbers(
            self, ("rank", "max_num_seqs", "keep_checkpoints"), ("warmup_steps", "save_every", "weight_decay")
        )


def read_options(given: Mapping[str, Any] | None) -> Options:
    """``given`` as Options. Raises OptionError that names the option, and the nearest valid one."""
    return read_as(Options, given, "the driver tinker", {"base_model": "the server's name of the model"})


def key() -> str:
    """The key of the environment. Raises UsageError without one."""
    found = os.environ.get(KEY_VARIABLE, "").strip()
    if not found:
        raise UsageError(
            f"{KEY_VARIABLE} is not set: the driver tinker needs a key, for `agl tinker serve` any that "
            "begins with tml-"
        )
    return found
