"""LoRA: a linear layer computes with ``W + alpha / rank * B @ A``, and only A and B are trained
(arXiv:2106.09685).

W keeps its name, its memory and its values, and may be quantised (``quantized``); A and B are float32 also
beside a W of less, where an update of a thousandth would be rounded away. Invariants: right after
:func:`adapt` the network computes what it computed before (B is 0); :meth:`LoraLinear.merged` is the one
matrix that gives the same outputs, to rounding, and it is what fingerprints and exports get, and engines
unless W is quantised or another policy's too (``policy.folder.state``, ``published``).
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Mapping

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agentlightning.types import UsageError
from agl_local.network.linear import Linear
from agl_local.network.model import LanguageModel
from agl_local.network.product import Matrix

ALL = "all-linear"
MATRICES = ("lora_A", "lora_B")
"""Names of the parameters of a layer that are trained."""
_LOG = logging.getLogger(__name__)


class LoraError(UsageError, ValueError):
    """Settings of LoRA that do not go with a network; the text names what is there."""


class Lora(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``backend.options.lora``."""

    rank: int
    """Rows of A, columns of B."""
    alpha: float = 16
    """The product of B and A is multiplied by ``alpha / rank``."""
    targets: str | tuple[str, ...] = ALL
    """Names of the linear layers that get A and B (``q_proj``, …); ``all-linear``: all of the blocks."""

    def __post_init__(self) -> None:
        if self.rank < 1 or not self.alpha > 0 or not self.targets:
            raise ValueError(
                f"lora: rank {self.rank} must be at least 1, alpha {self.alpha:g} positive, and targets must "
                f"name a layer or be {ALL!r}"
            )


class LoraLinear(Linear):
    """``base`` with A [rank, in] and B [out, rank] beside its weight, which both share."""

    def __init__(self, base: nn.Linear, rank: int, scale: float, generator: torch.Generator) -> None:
        nn.Module.__init__(self)
        self._share(base)
        self.scale = scale
        bound = 1 / math.sqrt(base.in_features)
        start = torch.empty(rank, base.in_features).uniform_(-bound, bound, generator=generator)
        given = torch.float32 if self.quantized is not None else self.weight.dtype
        dtype = torch.promote_types(given, torch.float32)
        self.lora_A = nn.Parameter(start.to(self.device, dtype))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank, device=self.device, dtype=dtype))

    @property
    def bare(self) -> bool:
        return False

    def beside(self, x: Tensor) -> Tensor:
        low = F.linear(x, self.lora_A.to(x.dtype))
        return F.linear(low, self.lora_B.to(x.dtype)) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.beside(x)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """The matrix that the layer computes with: new memory."""
        weight = self.frozen(self.lora_A.dtype)
        found = torch.addmm(weight, self.lora_B, self.lora_A, alpha=self.scale)
        return found if self.quantized is not None else found.to(self.weight.dtype)

    def plain(self) -> Linear:
        """The layer without A and B, on the same weight."""
        layer = Linear(self.in_features, self.out_features, bias=False, device="meta")
        layer._share(self)
        return layer


def targets_of(model: LanguageModel, lora: Lora) -> list[str]:
    """Full names of the layers that ``lora`` means. Raises :class:`LoraError`."""
    linear = model.linear_layers()
    if not linear:
        raise LoraError("lora: the blocks of this model have no linear layers of torch (nn.Linear)")
    if lora.targets == ALL:
        return linear
    wanted = [lora.targets] if isinstance(lora.targets, str) else list(lora.targets)
    names = {name.rpartition(".")[2] for name in linear}
    if unknown := [name for name in wanted if name not in names]:
        raise LoraError(
            f"lora: targets {', '.join(map(repr, unknown))}: the blocks have no such linear layer; they have "
            f"{', '.join(sorted(names))}, and {ALL!r} means all of these"
        )
    return [name for name in linear if name.rpartition(".")[2] in wanted]


def check_rank(model: LanguageModel, lora: Lora) -> None:
    """Warn of a rank above the shorter side of a matrix, where it can express no more than that side. Raises
    :class:`LoraError` for one above those of all, and for targets that are not there.
    """
    sides: dict[str, int] = {}
    for name in targets_of(model, lora):
        layer = model.weights.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        sides[name] = min(layer.in_features, layer.out_features)
    least, most = min(sides, key=sides.__getitem__), max(sides, key=sides.__getitem__)
    if lora.rank > sides[most]:
        raise LoraError(
            f"lora: rank {lora.rank} is above the shorter side of every matrix (at most {sides[most]}, of "
            f"{most}), and can express no more than that side: give at most {sides[most]}"
        )
    if lora.rank > sides[least]:
        _LOG.warning(
            "lora: rank %d is above the shorter side of a matrix (%d, of %s): there it takes memory and can "
            "express no more than that side",
            lora.rank,
            sides[least],
            least,
        )


def adapt(model: LanguageModel, lora: Lora, seed: int) -> None:
    """Give the layers of ``lora`` their A, drawn by ``seed``, and B; nothing else is trained any more."""
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name in targets_of(model, lora):
        parent, _, attribute = name.rpartition(".")
        base = model.weights.get_submodule(name)
        assert isinstance(base, nn.Linear)
        layer = LoraLinear(base, lora.rank, lora.alpha / lora.rank, generator)
        setattr(model.weights.get_submodule(parent), attribute, layer)


def adapted(model: nn.Module) -> dict[str, LoraLinear]:
    """The layers with A and B, by their name in the weights file; none without LoRA."""
    root = model.weights if isinstance(model, LanguageModel) else model
    return {name: module for name, module in root.named_modules() if isinstance(module, LoraLinear)}


def matrices(layers: Mapping[str, LoraLinear]) -> dict[str, Tensor]:
    """A and B of ``layers`` under the names that PEFT gives them in its files."""
    return {
        f"base_model.model.{name}.{kind}.weight": getattr(layer, kind).detach()
        for name, layer in layers.items()
        for kind in MATRICES
    }


def starting_point(model: LanguageModel) -> LanguageModel:
    """A copy of ``model`` that has no adapters and shares the memory of all that is not trained, and of what
    products with it are prepared with (``LanguageModel.pack``).
    """
    shared: dict[int, object] = {id(p): p for p in model.parameters() if not p.requires_grad}
    packed = (getattr(module, "packed", None) for module in model.modules())
    shared |= {id(matrix): matrix for matrix in packed if isinstance(matrix, Matrix)}
    shared |= {id(layer): layer.plain() for layer in adapted(model).values()}
    return copy.deepcopy(model, shared)


def become_base(model: LanguageModel) -> LanguageModel:
    """``model``, which has no adapters, as the base of several networks: each is a :func:`starting_point` of
    it with adapters of its own. From now on nobody writes these weights, lays them out anew, or frees what
    products with them are prepared with.
    """
    model.requires_grad_(False)
    model.shared = True
    return model


def lora_of(config: Mapping[str, object]) -> Lora:
    """The settings that PEFT's ``adapter_config.json`` stands for. Raises :class:`LoraError` for what is more
    than two matrices beside a layer.
    """
    plain = {"peft_type": "LORA", "bias": "none", "use_dora": False, "use_rslora": False}
    if other := [name for name, value in plain.items() if config.get(name, value) != value]:
        raise LoraError(f"{other[0]} is {config[other[0]]!r}: only {plain[other[0]]!r} is read")
    if more := [name for name in ("rank_pattern", "alpha_pattern", "modules_to_save") if config.get(name)]:
        raise LoraError(f"{more[0]} is given: only adapters of one rank, of linear layers, are read")
    given = {
        "rank": config.get("r"),
        "alpha": config.get("lora_alpha"),
        "targets": config.get("target_modules"),
    }
    if config.get("r") is None or config.get("lora_alpha") is None:
        missing = "r" if config.get("r") is None else "lora_alpha"
        raise LoraError(f"{missing} is not given: an adapter needs r, its rank, and lora_alpha, a number")
    try:
        return msgspec.convert(given, Lora)
    except msgspec.ValidationError as error:
        raise LoraError(f"r, lora_alpha and target_modules: {error}") from error


def peft_config(layers: Mapping[str, LoraLinear]) -> dict[str, object]:
    """PEFT's ``adapter_config.json`` for ``layers``."""
    first = next(iter(layers.values()))
    rank = first.lora_A.shape[0]
    return peft_settings(Lora(rank=rank, alpha=first.scale * rank), layers)


def peft_settings(lora: Lora, layers: Iterable[str]) -> dict[str, object]:
    """The same for ``lora`` beside layers of these full names."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.rpartition(".")[2] for name in layers}),
    }
