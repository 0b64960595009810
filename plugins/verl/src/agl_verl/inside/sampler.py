"""verl's replay buffer, which here says how many optimizer steps a batch takes, and knows the trainer."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from agl_verl.rows import Step

POLL = 0.02
"""Seconds; verl's own 2 would be most of a small step."""


class StepBuffer(ReplayBuffer):  # type: ignore[misc]
    """See the module. ``trainer``: whose buffer it is, the latest one made in this process."""

    trainer: Any = None
    step = Step([])
    """What is trained, see there."""
    keys: list[str] = []
    """Of the step's rows."""

    def __init__(self, **given: Any) -> None:
        super().__init__(poll_interval=POLL, **given)
        StepBuffer.trainer = given["refill_fn"].__self__

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """The step's rows. verl's mini-batches count rows, of which each step has another number."""
        batch, metrics = super().sample(
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        StepBuffer.keys = list(batch.keys)
        config = self.trainer.config
        config.actor_rollout_ref.actor.ppo_mini_batch_size = self.step.share
        # The step from which on verl updates the actor: how a step without a gradient passes.
        config.trainer.critic_warmup = 0 if self.step.optimizer_steps else global_steps + 1
        return batch, metrics
