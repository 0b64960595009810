"""Carries every documented GPU configuration of verl as far as a machine without GPUs goes.

    python bench/verl_compose/run.py            # in an environment with verl: make verl-compose

For each configuration of ``configurations.toml`` and each GPU profile of the examples:

1. the driver accepts its options and writes verl's configuration;
2. verl composes and validates it, makes its own records of its parts, and starts the trainer of its mode, up
   to the constructor that all trainers share;
3. a step of rows of mixed lengths, the longest of them ``max_len``, goes the way of a batch: made by credit's
   types, shipped, unpacked, divided among the data-parallel ranks and into micro-batches by verl. Every row
   is in exactly one micro-batch, and none has more tokens than a rank can take.

What comes after that (weights, NCCL, CUDA kernels, speed) needs GPUs and is not claimed. Entries ``refused``
are those that the documentation says are refused: each must be, for the reason that it names. The last line
is JSON; the exit status is 1 if a configuration is refused, or one that should be is not.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import tomllib
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table

from agentlightning.plugins.manager import load
from agentlightning.train.run_file import load_config
from agentlightning.types import Recipe, Row, Segment
from agentlightning.types.arrays import Flags, Floats, Ints
from agentlightning.types.tokens import TokenIds
from agl_verl.config.options import (
    OptionError,
    Options,
    data_parallel,
    overrides,
    read_options,
    tokens_a_pass,
)
from agl_verl.rows import pack, step, unpack

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
PROFILES = ("calc_x/verl_1gpu.yaml", "router/verl_1gpu.yaml", "spider/gpu.yaml", "werewolf/gpu.yaml")
GPUS = {"device": "cuda", "engine": "vllm"}
ROWS_A_RANK = 12
console = Console(stderr=True)


def configurations(folder: Path) -> Iterator[tuple[str, Path, Recipe, dict[str, Any]]]:
    """Yield the name, model folder, recipe and options of each."""
    recipes = load().recipes
    known = tomllib.loads((HERE / "configurations.toml").read_text(encoding="utf-8"))
    for one in known["configurations"]:
        name = one["model"]
        path = folder / name.replace(" ", "-")
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(known["models"][name]), encoding="utf-8")
        more = {"ray_address": "10.0.0.1:6379"} if one["options"].get("nodes", 1) > 1 else {}
        yield name, path, recipes[one.get("recipe", "grpo")].factory(), {**GPUS, **more, **one["options"]}
    for file in PROFILES:
        config = load_config(EXAMPLES / file)
        recipe = recipes[str(config.training.algorithm)].factory(**config.training.recipe)
        yield f"examples/{file}", folder, recipe, dict(config.backend.options)


def carry(path: Path, recipe: Recipe, given: dict[str, Any], folder: Path) -> str:
    """Carry one as far as it goes; return how. Raises what refuses it."""
    options = read_options(given)
    compose(overrides(str(path), recipe, 1, options, str(folder), steps=100), options)
    return divide(recipe, options)


def declined() -> dict[str, str]:
    """Return why each configuration of ``refused`` is refused. Raises ``AssertionError`` if one is not, or
    for another reason.
    """
    found: dict[str, str] = {}
    for one in tomllib.loads((HERE / "configurations.toml").read_text(encoding="utf-8"))["refused"]:
        shown = f"{one['model']}: {one['options']}"
        try:
            read_options({**GPUS, **one["options"]})
        except OptionError as error:
            found[shown] = str(error)
        if one["reason"] not in found.get(shown, ""):
            raise AssertionError(f"{shown}: {found.get(shown, 'accepted')}, not {one['reason']!r}")
    return found


class Reached(Exception):
    """The trainer has checked its configuration and begins."""


def compose(lines: list[str], options: Options) -> None:
    """Let verl compose, validate and begin."""
    import verl.utils.device as device
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
    from verl.utils.config import omega_conf_to_dataclass

    from agl_verl.inside import main

    with mock.patch.object(device, "auto_set_device", lambda config: None), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = main.configuration(lines)
    part = config.actor_rollout_ref
    omega_conf_to_dataclass(part.rollout)
    actor = omega_conf_to_dataclass(part.actor)
    actor.validate(options.ranks, config.data.train_batch_size, part.model)
    if config.critic.enable:
        omega_conf_to_dataclass(config.critic)
    trainer = TRAINER_REGISTRY[config.trainer.v1.trainer_mode]

    def reached(self: Any, config: Any) -> None:
        raise Reached

    with mock.patch.object(trainer_base.PPOTrainer, "__init__", reached):
        try:
            trainer(config)
        except Reached:
            return
    raise AssertionError(f"{trainer.__name__} did not reach the common constructor")


def divide(recipe: Recipe, options: Options) -> str:
    """Send a step the way of a batch; return what became of it."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
    from verl.workers.engine.utils import prepare_micro_batches

    ranks, limit = data_parallel(options), tokens_a_pass(options)
    made = unpack(pack(step(list(rows(ranks * ROWS_A_RANK, options.max_len)), recipe, ranks))).rows
    lengths = torch.tensor([len(row.prompt) + len(row.response) for row in made])
    parts = get_seqlen_balanced_partitions(calculate_workload(lengths), k_partitions=ranks, equal_size=True)
    seen, most, batches = [], 0, 0
    for part in parts[: 1 if ranks == 1 else ranks]:
        ids = [torch.zeros(int(lengths[place]), dtype=torch.long) for place in part]
        data = TensorDict(
            {
                "input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged),
                "place": torch.tensor(part),
            },
            batch_size=len(part),
        )
        tu.assign_non_tensor(
            data, use_dynamic_bsz=True, max_token_len_per_gpu=limit, sp_size=options.sequence_parallel
        )
        micro, _ = prepare_micro_batches(data)
        batches += len(micro)
        for one in micro:
            seen += one["place"].tolist()
            most = max(most, int(lengths[one["place"]].sum()))
    room = limit * options.sequence_parallel
    if sorted(seen) != list(range(len(made))):
        raise AssertionError(f"{len(made)} rows became {len(seen)} in micro-batches")
    if most > room:
        raise AssertionError(f"a micro-batch has {most} tokens, of which a rank can take {room}")
    return f"{len(made)} rows, {ranks} × {batches // ranks} micro-batches of at most {most} of {room} tokens"


def rows(count: int, longest: int) -> Iterator[Row]:
    """Yield rows of mixed lengths with two trained answers each; the first has ``longest`` tokens."""
    chance = random.Random(1)
    for number in range(count):
        n = longest if number == 0 else chance.randint(longest // 8, longest)
        segments = [Segment("a", n // 4, n // 2, 0.5), Segment("b", 3 * n // 4, n, 0.5)]
        mask = Flags(bytes(n))
        for one in segments:
            mask[one.start : one.end] = Flags([1]) * (one.end - one.start)
        yield Row(
            row_id=f"r/{number}",
            rollout_id="r",
            policy="policy",
            token_ids=TokenIds(range(n)),
            mask=mask,
            advantages=Floats([0.5 * m for m in mask]),
            logprobs=Floats([-1.0 * m for m in mask]),
            weights=Floats([m / n for m in mask]),
            versions=Ints([0 if m else -1 for m in mask]),
            segments=segments,
        )


def main() -> int:
    table = Table("configuration", "options", "went as far as", title="verl's GPU configurations, on a CPU")
    accepted, refused = 0, {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, path, recipe, given in configurations(Path(scratch)):
            shown = " ".join(f"{key}={value}" for key, value in given.items() if key not in GPUS)
            try:
                said = carry(path, recipe, given, Path(scratch))
                accepted += 1
            except Exception as error:
                said = f"[red]{type(error).__name__}: {error}"
                refused[f"{name}: {shown}"] = f"{type(error).__name__}: {error}"
                console.print(traceback.format_exc(limit=-3), style="dim", markup=False)
            table.add_row(name, shown, said)
    console.print(table)
    found = {"configs": accepted + len(refused), "accepted": accepted, "refused": refused}
    print(json.dumps({**found, "declined": declined()}))
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
