"""When verl rolls out and when it trains, and how verl is told so.

``sync``: agents wait while weights change. ``colocate_async``: verl's trainer of that name. Engine and
trainer share the device; calls under way stand still while it trains, and go on with the new weights.
``separate_async``: verl's too; the engines have GPUs of their own and get new weights through one of verl's
checkpoint engines. How far agents may be ahead of the trainer is the algorithm's to say, in each mode
(``async_steps``): verl prefetches nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.types import UsageError

if TYPE_CHECKING:
    from agl_verl.config.settings import Options

BUFFERS = {"sync": "SyncSteps", "colocate_async": "AsyncSteps", "separate_async": "AsyncSteps"}
"""Mode → class of :mod:`agl_verl.inside.steps.sampler`."""
ROLLOUT = "actor_rollout_ref.rollout"


class ModeError(UsageError, ValueError):
    """A mode that cannot be as the options say."""


def check(o: Options) -> None:
    """Raises ModeError for what cannot be used."""
    where = "backend.options.mode: separate_async"
    if o.mode != "separate_async":
        if o.engine_gpus:
            raise ModeError(
                "backend.options.engine_gpus: engines have GPUs of their own in mode separate_async"
            )
        return
    if o.device == "cpu":
        raise ModeError(
            f"{where}: engines apart from the trainer get weights through verl's checkpoint engines (nccl, "
            "nixl, …), which are for GPUs; on a CPU there is colocate_async"
        )
    if o.engine == "embedded":
        raise ModeError(
            f"{where}: the embedded engine gets its weights from a training worker beside it; say engine: "
            "vllm or sglang"
        )
    if o.engine_gpus < o.tensor_parallel or o.engine_gpus % o.tensor_parallel:
        raise ModeError(
            f"{where}: engine_gpus is {o.engine_gpus}; say how many GPUs the engines have beside the "
            f"{o.ranks} of the trainer, a multiple of tensor_parallel ({o.tensor_parallel})"
        )


def lines(o: Options) -> list[str]:
    """For verl's configuration."""
    made = [
        f"trainer.v1.trainer_mode={o.mode}",
        "trainer.v1.sampler.custom_sampler.path=pkg://agl_verl.inside.steps.sampler",
        f"trainer.v1.sampler.custom_sampler.name={BUFFERS[o.mode]}",
    ]
    if o.mode == "sync":
        return made
    # Credit judges how old a token may be; verl's own judge would drop whole steps.
    made += ["trainer.v1.sampler.max_off_policy_threshold=null", f"trainer.v1.{o.mode}.num_warmup_batches=0"]
    if o.mode == "colocate_async":
        return made
    return [
        *made,
        "trainer.v1.separate_async.parameter_sync_step=1",
        "actor_rollout_ref.hybrid_engine=False",
        f"{ROLLOUT}.nnodes=1",
        f"{ROLLOUT}.n_gpus_per_node={o.engine_gpus}",
        f"{ROLLOUT}.checkpoint_engine.backend=nccl",
    ]


REFUSED = {
    "trainer.v1.trainer_mode": "say it with the option mode",
    "trainer.v1.sampler": "rows come from the algorithm, a step at a time",
    "trainer.v1.colocate_async": "`training.async_steps` says how many steps are rolled out beforehand",
    "trainer.v1.separate_async": "`training.async_steps` says how many steps are rolled out beforehand",
    f"{ROLLOUT}.nnodes": "say it with the option engine_gpus",
    f"{ROLLOUT}.n_gpus_per_node": "say it with the option engine_gpus",
    "algorithm.rollout_correction": "the recipe's correction, importance_cap and off_policy_cap "
    "correct tokens",
}
"""Lines of verl's configuration that are options of ours, or a recipe's fields."""
