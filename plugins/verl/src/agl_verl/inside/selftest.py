"""What of verl we touch that it does not promise, checked by name before anything starts.

Each line is one thing that a release may change; :func:`changed` names those that have.
"""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import version
from typing import Any

from agl_verl.inside import sources

TESTED = "0.9.1"
TOUCHED: dict[str, tuple[str, ...]] = {
    "verl.workers.rollout.base:_ROLLOUT_REGISTRY": (),
    "verl.workers.rollout.replica:RolloutReplicaRegistry._registry": (),
    "verl.utils.distributed:initialize_global_process_group_ray": ("timeout_second", "backend"),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._load_checkpoint": (),
    "verl.checkpoint_engine.base:CheckpointEngineManager.sleep_replicas": (),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer.on_init_end": (),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._build_replay_buffer": (),
    "verl.trainer.ppo.v1.trainer_base:PPOTrainer._balance_batch": ("batch", "metrics"),
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.sample": ("global_steps", "partition_id", "batch_size"),
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer.__init__": ("poll_interval", "refill_fn"),
    "verl.trainer.ppo.v1.replay_buffer:ReplayBufferAsync.sample": (
        "global_steps",
        "partition_id",
        "batch_size",
    ),
    "verl.trainer.ppo.v1.trainer_colocate_async:PPOTrainerColocateAsync.on_sample_end": (),
    "verl.workers.rollout.replica:RolloutReplica.abort_all_requests": ("reject_request",),
    "verl.workers.rollout.replica:RolloutReplica.resume_generation": (),
    "verl.trainer.main_ppo:TaskRunnerV1": (),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead._build_fsdp_module": ("module",),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead._build_lora_module": ("module",),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.get_per_tensor_param": (),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.save_checkpoint": ("local_path",),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.forward_backward_batch": ("data",),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.optimizer_step": (),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngine.load_checkpoint": ("local_path",),
    "verl.single_controller.ray:RayWorkerGroup.workers": (),
    "verl.workers.engine_workers:ActorRolloutRefWorker.set_loss_fn": ("loss_fn",),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithValueHead._build_module": (),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithValueHead.forward_backward_batch": ("data",),
    "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithValueHead.optimizer_step": (),
    "verl.utils.model:load_valuehead_model": (
        "local_path",
        "torch_dtype",
        "model_config",
        "trust_remote_code",
    ),
    "verl.trainer.ppo.core_algos:compute_gae_advantage_return": (
        "token_level_rewards",
        "values",
        "response_mask",
        "gamma",
        "lam",
    ),
    "verl.workers.utils.padding:no_padding_2_padding": ("tensor", "data"),
    "verl.trainer.main_ppo:run_ppo": ("config", "task_runner_class"),
    "verl.utils.tensordict_utils:list_of_dict_to_tensordict": (),
}
"""``module:object`` → parameters that it must take."""


def changed() -> list[str]:
    """What is not as it was in the version that was tested."""
    problems = []
    if version("verl") != TESTED:
        problems.append(f"verl is {version('verl')}; {TESTED} was tested: pip install 'verl=={TESTED}'")
    for path, parameters in TOUCHED.items():
        module, _, names = path.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for name in names.split("."):
                found = getattr(found, name)
            takes = inspect.signature(found).parameters if parameters else {}
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            problems.append(f"{path}: {type(error).__name__}: {error}")
            continue
        problems += [f"{path} takes no {name!r}" for name in parameters if name not in takes]
    return [*problems, *sources.missing()]
