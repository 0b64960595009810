"""How attention is computed, and over how many ranks a row is divided.

``sdpa`` is torch's own, on padded batches. ``flash_attention_2`` (package ``flash-attn``) computes a
micro-batch as one packed sequence without padding, which is also what sequence parallelism needs: with
``sequence_parallel: n`` the tokens of a row are shared by n ranks (Ulysses, arXiv 2309.14509). ``auto`` takes
``flash_attention_2`` on GPUs whose environment has it, and ``sdpa`` elsewhere.
"""

from __future__ import annotations

import logging
import subprocess
from typing import TYPE_CHECKING

from agentlightning.types import UsageError
from agl_verl.config.settings import Attention

if TYPE_CHECKING:
    from agl_verl.config.settings import Options

log = logging.getLogger(__name__)
ASK = "import importlib.util as u; print(u.find_spec('flash_attn') is not None)"
SEQUENCES = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"
"""The reference policy's is verl's to take from here."""


class AttentionError(UsageError, ValueError):
    """A way to compute attention that the machine or the ranks do not have."""


def check(o: Options) -> None:
    """Raise AttentionError for what cannot be used."""
    if o.attention == "flash_attention_2" and o.device == "cpu":
        raise AttentionError(
            "backend.options.attention: flash_attention_2 is for GPUs; on a CPU there is sdpa"
        )
    if o.sequence_parallel < 1 or o.ranks % max(1, o.sequence_parallel):
        raise AttentionError(
            f"backend.options.sequence_parallel: {o.ranks} ranks cannot share rows {o.sequence_parallel} by "
            f"{o.sequence_parallel}"
        )
    if o.sequence_parallel > 1 and (o.device == "cpu" or o.attention == "sdpa"):
        raise AttentionError(
            "backend.options.sequence_parallel: rows are divided in packed sequences alone; that takes "
            "device: cuda and attention: flash_attention_2"
        )


def resolved(o: Options) -> Attention:
    """Return what ``auto`` stands for: asks the interpreter that has verl, if there are GPUs."""
    if o.attention != "auto":
        return o.attention
    if o.device == "cpu":
        return "sdpa"
    try:
        done = subprocess.run(
            [o.python, "-c", ASK], capture_output=True, encoding="utf-8", timeout=60, check=True
        )
        if done.stdout.strip() == "True":
            return "flash_attention_2"
    except (OSError, subprocess.SubprocessError) as error:
        # What is wrong with an interpreter its start says; sdpa needs nothing of it.
        log.warning("%s cannot be asked for flash-attn, sdpa is taken: %s", o.python, error)
    if o.sequence_parallel > 1:
        raise AttentionError(
            f"backend.options.sequence_parallel: {o.python} has no flash-attn, which it takes; "
            "scripts/setup_gpu.sh --flash-attn builds it"
        )
    return "sdpa"


def lines(o: Options) -> list[str]:
    """For verl's configuration. ``auto`` is taken for ``sdpa``: resolve it before."""
    packed = o.attention == "flash_attention_2"
    made = [
        f"actor_rollout_ref.model.use_remove_padding={packed}",
        f"+actor_rollout_ref.model.override_config.attn_implementation={name(o)}",
    ]
    return made if o.sequence_parallel == 1 else [*made, f"{SEQUENCES}={o.sequence_parallel}"]


def name(o: Options) -> str:
    """Return what transformers calls it."""
    return "flash_attention_2" if o.attention == "flash_attention_2" else "sdpa"


REFUSED = {
    "actor_rollout_ref.model.use_remove_padding": "say it with the option attention",
    SEQUENCES: "say it with the option sequence_parallel",
}
"""Lines of verl's configuration that are options of ours."""
