"""Make a small policy for a task: a Qwen2-shaped network from random weights, taught on a few dozen chats.

The result is a start for reinforcement learning: it speaks the task's form, and is no assistant. Invariant:
the same chats, settings and number of threads make the same policy, bit for bit.
"""

from __future__ import annotations

import glob
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from agentlightning.terminal import Console
from agentlightning.types import UsageError
from agl_local.fresh.tokenizer import TEMPLATE, tokenizer_for
from agl_local.network.config import ModelConfig
from agl_local.policy.files import remove_unfinished
from agl_local.policy.folder import Policy, fingerprint, init_model
from agl_local.sft.chats import ChatSet
from agl_local.sft.finetune import SftSettings, finetune
from agl_local.sft.folder import Parent, check_output, write_finetuned
from agl_local.sft.job import say_left_out, show_progress

HEAD = 32
"""Size of an attention head."""


@dataclass(frozen=True)
class Shape:
    """The size of the network."""

    hidden: int = 128
    """Width; a multiple of 64."""
    layers: int = 2
    length: int = 2048
    """Tokens of prompt and answer together."""

    def __post_init__(self) -> None:
        if self.hidden < 2 * HEAD or self.hidden % (2 * HEAD):
            raise UsageError(f"--hidden {self.hidden}: give a multiple of {2 * HEAD}")
        if self.layers < 1 or self.length < 2:
            raise UsageError("--layers and --length: give positive numbers")


def make(
    data: ChatSet,
    output: Path,
    settings: SftSettings,
    shape: Shape = Shape(),
    *,
    template: Path = TEMPLATE,
    threads: int = 1,
    console: Console | None = None,
) -> dict[str, Any]:
    """Make the policy with the chat template in the file ``template``, teach it ``data``, write the folder
    ``output`` with a card, and return the summary that ``agl policy new --json`` prints. Raise a
    :class:`UsageError` for what cannot be used.
    """
    console = console or Console(stderr=True)
    try:
        target = check_output(output)
    except FileExistsError as error:
        raise UsageError(f"{error}; name a new folder") from None
    remove_unfinished(target.parent, glob.escape(target.name))
    torch.set_num_threads(threads)
    tokenizer = tokenizer_for(data.chats, shape.length, template)
    config = ModelConfig(
        hidden_size=shape.hidden,
        intermediate_size=3 * shape.hidden,
        num_layers=shape.layers,
        num_heads=shape.hidden // HEAD,
        num_kv_heads=shape.hidden // (2 * HEAD),
        head_dim=HEAD,
        vocab_size=tokenizer.vocab_size,
        max_positions=shape.length,
        eos_token_ids=tokenizer.eos_ids,
    )
    policy = Policy(init_model(config, settings.seed), tokenizer, config)
    source = f"agl policy new, random weights of seed {settings.seed}"
    parent = Parent("none", "none", "that of the data", source, fingerprint(policy.model))
    with show_progress(console) as (step, validated):
        report = finetune(policy, data.chats, settings, progress=step, validated=validated)
    say_left_out(report, console)
    write_finetuned(policy, target, parent, data, settings, report)
    size = sum(parameter.numel() for parameter in policy.model.parameters())
    return {
        "policy": str(target),
        "parameters": size,
        "vocabulary": tokenizer.vocab_size,
        "data": data.source,
        "data_sha256": data.sha256,
        **asdict(settings),
        **{key: value for key, value in asdict(report).items() if key != "parameters"},
    }
