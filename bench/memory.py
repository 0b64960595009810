"""Does a run take the memory that the formulas say? Peaks of real updates beside a real engine, counted.

    python -m bench.memory          (``make memory``); the last line is one JSON object

Twelve combinations: all weights or LoRA trained, beside an engine in float32 or bfloat16, or over a base in
int8 or nf4, with and without activation checkpointing. Each loads a network of random weights, makes the
weights and the cache of an engine, and two updates of several micro-batches, on the CPU. What is counted is
every tensor that an operator of torch gives, from then until its memory is freed; what is predicted is
``agl_local.network.memory.run_bytes``. ``worst_error`` is the largest share by which the two differ; the exit
status is 1 above :data:`ALLOWED`. ``cards`` says which model fits which card, by the same formula; no card
was measured.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentlightning.types import Recipe
from agl_local.network.config import ModelConfig
from agl_local.network.lora import Lora, adapt, become_base, starting_point
from agl_local.network.memory import LocalRun, run_bytes
from agl_local.network.shape import NetworkShape
from agl_local.policy.folder import init_model, load_policy, save_policy
from agl_local.training.update import Updater
from bench.gpu.loads import policy, rows
from scripts.model_memory import cards

ALLOWED = 0.10
SHAPE = NetworkShape(128, 384, 4, 4, 2, 32, 1000, tied=True, qkv_bias=True)
PROMPT, ANSWER, RANK, SLOTS, MAX_LEN = 190, 50, 8, 8, 240
"""Of each row a micro-batch is made."""


class Counted(TorchDispatchMode):
    """Bytes of the tensors that operators gave inside: ``now``, and ``peak``."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(given):
            if isinstance(leaf, Tensor) and not leaf.is_mkldnn and not leaf.is_meta:
                self._note(leaf.untyped_storage())
        return given

    def _note(self, storage: torch.UntypedStorage) -> None:
        place, size = storage._cdata, storage.nbytes()
        if place not in self._alive:
            self._alive.add(place)
            weakref.finalize(storage, self._freed, place, size)
            self.now += size
            self.peak = max(self.peak, self.now)

    def _freed(self, place: int, size: int) -> None:
        self._alive.discard(place)
        self.now -= size


def plans() -> list[LocalRun]:
    """The twelve combinations."""
    ways = [
        (None, "float32"),
        (None, "bfloat16"),
        *((RANK, kind) for kind in ("float32", "bfloat16", "int8", "nf4")),
    ]
    return [
        LocalRun(
            rank=rank,
            base=base,
            checkpointed=checkpointed,
            positions=PROMPT + ANSWER,
            trained=ANSWER,
            held=SLOTS * MAX_LEN,
        )
        for (rank, base), checkpointed in itertools.product(ways, (False, True))
    ]


def saved(folder: Path) -> Path:
    """A policy of :data:`SHAPE` with random weights."""
    return save_policy(policy(init_model(ModelConfig(**asdict(SHAPE)), seed=0)), folder)


def measured(plan: LocalRun, folder: Path) -> int:
    """The peak of two updates of each policy beside the engine's weights and caches. All are in ``folder``;
    several have LoRA.
    """
    quantize, dtype = plan.quantize, "bfloat16" if plan.base == "bfloat16" else "float32"
    with Counted() as counted:
        base = load_policy(folder, quantize=quantize).model
        engine = load_policy(folder, dtype=dtype, quantize=quantize).model.requires_grad_(False)
        trained, served = [base], [engine]
        if plan.policies > 1:
            shared = [starting_point(become_base(model)) for model in (base, engine) * plan.policies]
            trained, served = shared[::2], shared[1::2]
        for model in trained if plan.rank is not None else []:
            adapt(model, Lora(rank=plan.rank or 0), 0)
        for model in served if plan.rank is not None and (quantize or plan.policies > 1) else []:
            adapt(model, Lora(rank=plan.rank or 0), 0)
            model.to(model.dtype).requires_grad_(False)
        caches = [model.new_cache(SLOTS, MAX_LEN) for model in served]
        updaters = [
            Updater(model, Recipe(name="memory"), micro_tokens=plan.positions, recompute=plan.checkpointed)
            for model in trained
        ]
        batch = rows(SHAPE.vocab_size, 2, 1, PROMPT, ANSWER)
        for updater in updaters * 2:
            updater.update(batch, 0)
    del caches
    return counted.peak


def main() -> int:
    """Measure all, and print how far the formulas are off."""
    torch.set_num_threads(1)
    print("Peaks of two updates of a small network on the CPU, counted, beside the formula:", file=sys.stderr)
    errors = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = saved(Path(scratch) / "policy")
        for plan in plans():
            found, predicted = measured(plan, folder), run_bytes(SHAPE, plan)
            errors.append(abs(predicted / found - 1))
            trained = "all weights" if plan.rank is None else f"LoRA of rank {plan.rank}"
            print(
                f"{trained}, {plan.base}{', checkpointed' * plan.checkpointed}: {found / 1e6:.1f} MB, "
                f"predicted {predicted / 1e6:.1f}",
                file=sys.stderr,
                flush=True,
            )
    worst = max(errors)
    counted = {"device": "cpu", "combinations": len(errors), "worst_error": round(worst, 4)}
    print(json.dumps({**counted, "cards": cards()}))
    return int(worst > ALLOWED)


if __name__ == "__main__":
    raise SystemExit(main())
