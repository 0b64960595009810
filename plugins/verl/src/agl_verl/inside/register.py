"""Everything of ours that verl must know, registered when verl is imported (entry point group
``verl.plugins``).

verl swallows what a plugin raises, so what fails here is said on standard error, and :func:`missing` names it
before anything is trained.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from typing import Any

from agl_verl.inside.learning.tap import tapped

NAME = "embedded"
"""``rollout.name`` of the local engine."""


def estimator() -> None:
    """``algorithm.adv_estimator=agl``: the rows bring their advantages, weights included."""
    from verl.trainer.ppo.core_algos import register_adv_est

    register_adv_est("agl")(carried)


def carried(
    token_level_rewards: Any, response_mask: Any, config: Any = None, **given: Any
) -> tuple[Any, Any]:
    """Advantages and returns: what the rows carry in the place of rewards. verl has just computed its own
    logprobs of them.
    """
    from agl_verl.inside.steps.sampler import tell_and_correct

    tell_and_correct()
    advantages = token_level_rewards * response_mask
    return advantages, advantages


def critic() -> None:
    """``algorithm.adv_estimator=gae``, which also tells the driver what every step does, and value models."""
    from verl.trainer.ppo import core_algos
    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead

    from agl_verl.inside.learning.critic import estimating, valued
    from agl_verl.inside.learning.resumed import resumed

    core_algos.compute_gae_advantage_return = estimating(core_algos.compute_gae_advantage_return)
    ours = valued(resumed(tapped(FSDPEngineWithValueHead, "critic")))
    on_cpu = os.environ.get("VERL_PLATFORM") == "cpu"
    # The key of verl's own names no vendor, and is asked after one that does.
    where = {"device": "cpu"} if on_cpu else {"device": "cuda", "vendor": "nvidia"}
    EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], **where)(ours)


def engine() -> None:
    """verl's FSDP engine on a CPU (``fsdp2``), and process groups of one kind of device."""
    import verl.utils.distributed as distributed
    from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

    from agl_verl.inside.learning.lora import adapted
    from agl_verl.inside.learning.resumed import resumed
    from agl_verl.inside.learning.stepping import any_pull, stepping

    class CpuFsdp(adapted(resumed(stepping(tapped(FSDPEngineWithLMHead), any_pull)))):  # type: ignore[misc]
        """As it is, but for the tap, LoRA, options that stay, and a reference's way to the CPU."""

        def _build_fsdp_module(self, module: Any) -> Any:
            # verl keeps a reference in pinned memory, which only an accelerator has; here it is built like
            # the policy.
            config: Any = self.engine_config  # type: ignore[has-type]
            self.engine_config = dataclasses.replace(config, forward_only=False)
            try:
                return super()._build_fsdp_module(module)
            finally:
                self.engine_config = config

    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")(CpuFsdp)
    begin = distributed.initialize_global_process_group_ray

    def one_backend(timeout_second: int | None = None, backend: str | None = None) -> Any:
        # verl asks for "cpu:gloo,<device>:<backend>", and torch refuses a device that is named twice.
        return begin(timeout_second, backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = one_backend


def gpu_engine() -> None:
    """verl's FSDP engine on a GPU: as it is, but for the tap, LoRA, and options that stay."""
    from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

    from agl_verl.inside.learning.lora import adapted
    from agl_verl.inside.learning.resumed import resumed
    from agl_verl.inside.learning.stepping import any_pull, stepping

    ours = adapted(resumed(stepping(tapped(FSDPEngineWithLMHead), any_pull)))
    where = {"model_type": "language_model", "device": "cuda", "vendor": "nvidia"}
    EngineRegistry.register(backend=["fsdp", "fsdp2"], **where)(ours)


def rollout() -> None:
    """``rollout.name=embedded``: the local engine behind a Ray actor."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    def replica() -> type:
        from agl_verl.inside.serving.replica import EmbeddedReplica

        return EmbeddedReplica

    RolloutReplicaRegistry.register(NAME, replica)
    _ROLLOUT_REGISTRY[NAME, "async"] = "agl_verl.inside.serving.weights.EmbeddedWeights"


def servers() -> None:
    """Register verl's vLLM and SGLang servers, announced to the driver; imported on first use."""
    from agl_verl.inside.serving.servers import register

    def vllm() -> type:
        from agl_verl.inside.serving.vllm import VllmReplica

        return VllmReplica

    def sglang() -> type:
        from agl_verl.inside.serving.sglang import SglangReplica

        return SglangReplica

    register("vllm", vllm)
    register("sglang", sglang)


def register() -> list[str]:
    """Register; what could not be."""
    failed = []
    steps = [estimator, critic, rollout, servers]
    if os.environ.get("VERL_PLATFORM") == "cpu":
        import agl_verl.inside.platform  # noqa: F401 - registers itself

        steps.append(engine)
    else:
        steps.append(gpu_engine)
    for step in steps:
        try:
            step()
        except Exception as error:
            failed.append(f"{step.__name__}: {type(error).__name__}: {error}")
            print(f"agl-verl: {step.__name__} could not be registered with verl", file=sys.stderr)
            traceback.print_exc()
    return failed


FAILED = register()
