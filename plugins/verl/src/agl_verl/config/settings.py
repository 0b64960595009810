"""The driver's own settings."""

from __future__ import annotations

import sys
from typing import Literal

import msgspec

from agl_verl.config.lora import Lora

Attention = Literal["auto", "sdpa", "flash_attention_2"]
Engine = Literal["embedded", "vllm", "sglang"]
InFlight = Literal["abort", "keep"]
Mode = Literal["sync", "colocate_async", "separate_async"]
MEMORY = 0.5
"""Share of a GPU that a server takes where nothing is said."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``backend.options`` of a run with the ``verl`` driver."""

    python: str = sys.executable
    """Interpreter of the environment that has verl; agents and their frameworks need not live in it."""
    device: Literal["cpu", "cuda"] = "cpu"
    """What workers and engines compute on."""
    ranks: int = 1
    """Data-parallel training workers (FSDP), on all nodes together."""
    nodes: int = 1
    """Ray nodes that share the ranks equally; more than one needs ``ray_address``."""
    ray_address: str | None = None
    """``HOST:PORT`` of a Ray cluster to join; ``None``: a Ray of the run's own, on this machine."""
    mode: Mode = "sync"
    """Whether calls under way wait for an update to end: see :mod:`agl_verl.config.modes`."""
    engine_gpus: int = 0
    """GPUs that engines have to themselves, in mode ``separate_async``."""
    lr: float = 1e-4
    """Learning rate of AdamW, constant."""
    weight_decay: float = 0.0
    """Decoupled weight decay of AdamW (arXiv 1711.05101)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's first and second moment."""
    max_grad_norm: float = 1.0
    """Largest global gradient norm."""
    critic_lr: float | None = None
    """Learning rate of a recipe's critic; ``None``: ``lr``."""
    critic_warmup: int = 0
    """First steps of a run that train the critic alone."""
    max_len: int = 2048
    """Tokens of prompt and answer together."""
    micro_batch_tokens: int | None = None
    """Tokens of one forward pass of a worker; ``sequence_parallel`` times as many have room for ``max_len``,
    because a row is divided by nothing else. ``None``: 4,096, or more if ``max_len`` needs it.
    """
    attention: Attention = "auto"
    """``sdpa``, ``flash_attention_2``, or what the machine has: see :mod:`agl_verl.config.attention`."""
    sequence_parallel: int = 1
    """Ranks that share the tokens of a row."""
    lora: Lora | None = None
    """``{rank: 8, alpha: 16, targets: all-linear}``: train small matrices beside frozen weights."""
    engine: Engine = "embedded"
    """What serves the policy: agl-local's engine, or verl's own ``vllm`` or ``sglang`` servers on GPUs."""
    engines: int = 1
    """Embedded engines: that of rank 0, or of the first ranks, each with a copy of the weights."""
    tensor_parallel: int = 1
    """Ranks that one vLLM or SGLang server spans."""
    engine_memory: float = MEMORY
    """Share of a GPU's memory that a vLLM or SGLang server takes."""
    tool_parser: str | None = None
    """vLLM's or SGLang's name for the way the model writes tool calls; ``None``: as Qwen does."""
    in_flight: InFlight = "abort"
    """What vLLM does with its calls when it gets new weights, in mode ``separate_async``: ``abort`` (the
    gateway sends them again, from the start) or ``keep`` (they stand still, and go on with the new weights).
    """
    engine_threads: int | None = None
    """Of an embedded engine; ``None``: torch's own choice."""
    max_num_seqs: int = 64
    """Answers that an engine writes at a time."""
    save_every: int = 0
    """Steps between checkpoints; there is always one after the last step."""
    keep_checkpoints: int = 2
    """Checkpoints that are kept."""
    start_seconds: float = 600.0
    """How long Ray, the workers and the engine may take to stand."""
    overrides: list[str] = []
    """Further lines for verl's configuration, in Hydra's form ``key=value``; they win."""
