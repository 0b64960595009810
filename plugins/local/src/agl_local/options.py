"""The driver's own settings: what a recipe does not say. Checked when they are read; an unknown name is an
error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from agl_local.cores import auto_threads
from agl_local.http.vllm_engine import RANKS, Vllm
from agl_local.network.lora import Lora
from agl_local.network.quantized import Kind
from agl_local.option_values import OptionError, check_numbers, read_as
from agl_local.policy.folder import DTYPES

_COUNTS = ("micro_batch_tokens", "threads", "engines", "engine_threads", "max_num_seqs", "keep_checkpoints")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``backend.options`` of a run with the ``local`` driver."""

    lr: float = 1e-4
    """Learning rate of AdamW, constant after ``warmup_steps`` optimizer steps."""
    warmup_steps: int = 0
    """Optimizer steps over which the learning rate rises from 0."""
    weight_decay: float = 0.0
    """Decoupled weight decay of AdamW (arXiv 1711.05101)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of AdamW's first and second moment."""
    eps: float = 1e-8
    """Added to the root of AdamW's second moment."""
    max_grad_norm: float | None = 1.0
    """Largest global gradient norm; ``None``: no clipping."""
    freeze: tuple[str, ...] = ()
    """Patterns of names of parameters that are not trained, such as ``*embed_tokens*``; they need no gradient
    and no optimizer state. A pattern without a match is refused.
    """
    lora: Lora | None = None
    """``{rank: 16, alpha: 32, targets: all-linear}``: train small matrices beside frozen weights.
    Fingerprints and export get the sums; so do engines, unless the base is quantised or another policy's too.
    """
    quantize: Kind | None = None
    """Beside ``lora``: keep the frozen matrices of the layers in 8 or 4 bits a number, which takes a quarter
    or a seventh of their memory in trainer and engine. The policy is then the quantised one.
    """
    micro_batch_tokens: int = 4096
    """Positions of one forward pass of the update: memory and speed, not the result."""
    verify: bool = True
    """Also score rows that have no gradient, so that ``logprob_gap_max`` covers every trained token."""
    share_prefixes: bool = True
    """Compute what rows have in common from their first token on once: speed, not the result."""
    activation_checkpointing: bool = False
    """Keep of each layer only its input and compute the rest again in the backward pass: less memory for a
    third more time, not another result.
    """
    offload_optimizer: bool = False
    """Keep AdamW's moments in the host's memory and step there: a device holds 8 bytes of a trained parameter
    instead of 16, and each step copies weights and gradients. Refused on a CPU, which has one memory.
    """
    device: str = "cpu"
    """``cpu``, ``cuda``, ``cuda:1``, ``mps``, or ``auto`` (the first of cuda, mps, cpu that is there)."""
    dtype: str = "float32"
    """Precision of the engine. The trainer's weights and optimizer are float32, rounded when they are sent;
    below float32 the engine's logprobs differ from the trainer's by more than 1e-4, as each step reports,
    and on CUDA the update's products are TF32, whose rounding is finer than the engine's.
    """
    backward_dtype: Literal["float32", "bfloat16", "auto"] = "float32"
    """To what the operands of the update's backward pass are rounded. ``bfloat16`` takes half the time on
    processors with instructions for it; the forward pass, hence logprobs, and weights and optimizer stay
    float32. ``auto``: bfloat16 on such a processor, else float32.
    """
    threads: int | Literal["auto"] = "auto"
    """CPU threads of the update; ``auto``: the cores that this process may run on, at most 8."""
    engine: Literal["process", "thread", "vllm"] = "process"
    """Where the policy is served: a child process, a thread of this one (for tests and debuggers), or vLLM,
    which the driver starts. vLLM gets all weights after each step, or with ``lora`` A and B alone.
    """
    vllm: Vllm | None = None
    """``{python: PATH, args: {gpu-memory-utilization: 0.5}}``: the interpreter that has vLLM, and flags of
    vLLM's server. Default: this interpreter, no flag beyond what the other options say.
    """
    engines: int = 1
    """Engine processes that serve the policy, each with its own copy of the weights: more answers at a time
    on a machine with cores to spare. The calls of an attempt keep to one."""
    engine_threads: int | Literal["auto"] = "auto"
    """CPU threads of an engine process; ``auto``: as ``threads``, shared among the ``engines``; 1 when
    ``deterministic``, whose small products gain little from a second core and lose much where others want
    that core too.
    """
    max_num_seqs: int = 64
    """Conversations that an engine runs at a time."""
    max_len: int | None = None
    """Tokens of prompt and answer together; ``None``: what the policy allows, at most 2048."""
    reference: str | None = None
    """Model folder of the reference policy of the KL term; ``None``: the policy that the run starts from."""
    save_every: int = 10
    """Steps between checkpoints, of which one follows the last step; 0: none. A run that breaks off goes on
    from the last one; the steps after it are rolled out and trained anew.
    """
    keep_checkpoints: int = 2
    """Checkpoints kept."""
    save_optimizer: bool = True
    """Checkpoints hold the moments of AdamW, two float32 numbers for each trained parameter. Without, a
    resumed run begins them anew; refused when ``deterministic``.
    """
    deterministic: bool = False
    """The same rows and parameters, bit for bit, whatever else happens: an answer's tokens and logprobs are a
    function of prompt, sampling settings, seed and weights (not of concurrency, order, slots or cache), an
    update of its rows and the state before it; each step reports a digest of the parameters.

    It holds for one kind of CPU, one build of torch, one number of ``threads`` and of ``engine_threads``;
    requests must bring a seed. Serving is three to four times slower. Only float32 on a CPU, of the
    families with a forward of our own; else it is refused.
    """
    digest_every: int = 0
    """Steps between digests of the parameters; 0: none (each step when ``deterministic``)."""

    def __post_init__(self) -> None:
        check_numbers(self, _COUNTS, ("warmup_steps", "save_every", "digest_every", "weight_decay"))
        if self.lora is not None and self.freeze:
            raise ValueError(
                "lora freezes all weights: leave freeze out, or name fewer layers as targets of lora"
            )
        if self.quantize is not None and self.lora is None:
            raise ValueError(
                f"quantize: {self.quantize} is for frozen matrices: give lora too, such as lora: {{rank: 16}}"
                ", or leave quantize out"
            )
        if self.deterministic and self.dtype != "float32":
            raise ValueError(f"deterministic needs dtype float32, got {self.dtype}")
        if self.deterministic and self.backward_dtype != "float32":
            raise ValueError(f"deterministic needs backward_dtype float32, got {self.backward_dtype}")
        if self.deterministic and not self.save_optimizer:
            raise ValueError(
                "deterministic needs save_optimizer: a resumed run would begin with other moments"
            )
        if self.engines > 1 and self.engine == "thread":
            raise ValueError(f"engines must be 1 with engine: thread, got {self.engines}")
        self._check_vllm()
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {sorted(DTYPES)}")

    def _check_vllm(self) -> None:
        if self.engine != "vllm":
            if self.vllm is not None:
                raise ValueError(f"vllm is for engine: vllm, which is {self.engine}")
            return
        refused = {
            "deterministic": (self.deterministic, "its sums depend on what else it computes"),
            "quantize": (
                self.quantize is not None,
                "its quantised matrices would be others than the trainer's",
            ),
            "engines": (self.engines > 1, "one vLLM takes a card; give max_num_seqs instead"),
            "lora": (self.lora is not None and self.lora.rank > RANKS[-1], f"ranks end at {RANKS[-1]}"),
            "device": (self.device == "mps", "it has no build for it"),
        }
        for name, (given, why) in refused.items():
            if given:
                raise ValueError(f"{name}: {getattr(self, name)} is not for engine: vllm: {why}")

    @property
    def update_threads(self) -> int:
        """``threads`` as a number."""
        return auto_threads() if self.threads == "auto" else self.threads

    @property
    def serving_threads(self) -> int:
        """``engine_threads`` as a number."""
        if self.engine_threads != "auto":
            return self.engine_threads
        return 1 if self.deterministic else max(1, self.update_threads // self.engines)


def read_options(given: Mapping[str, Any] | None) -> Options:
    """``given`` as Options. Raises OptionError that names the option, and the nearest valid one."""
    return read_as(Options, given, "the local driver")


def pick_device(name: str) -> str:
    """``auto`` resolved; other names as they are. Raises OptionError for a device that is not there."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise OptionError(f"device {name!r} cannot be used: {error}") from error
    return name
