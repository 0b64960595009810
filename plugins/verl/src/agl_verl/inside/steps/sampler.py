"""verl's replay buffer, which here fetches a step's rows from the driver, says how many optimizer steps they
take, and knows the trainer.

Invariant: what verl trains in a step are exactly the rows that were collected for it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from agl_verl.inside.steps.trajectories import put
from agl_verl.process.channel import Channel
from agl_verl.rows import Step, unpack

POLL = 0.02
"""Seconds; verl's own 2 would be most of a small step."""


class StepBuffer:
    """See the module. What is said here is of the latest buffer made in this process."""

    trainer: Any = None
    """Whose buffer it is."""
    asked: deque[tuple[str, int]] = deque()
    """Steps that verl has begun: its prompt's uid, and the step's number from 1."""
    step = Step([])
    """What is trained, see there."""
    keys: list[str] = []
    """Of the step's rows."""
    recipe: dict[str, Any] = {}
    """What the run trains by."""
    corrects: bool | None = None
    """Whether the loss weighs fresh tokens by importance; ``None``: verl's own loss stands for the recipe's.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(poll_interval=POLL, **given)  # type: ignore[call-arg]
        StepBuffer.trainer = given["refill_fn"].__self__
        self.trainer._balance_batch = as_dealt

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """The step's rows; waits until its rollouts have ended. verl's mini-batches count rows, of which each
        step has another number.
        """
        self._fetch()
        batch, metrics = super().sample(  # type: ignore[misc]
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        StepBuffer.keys = list(batch.keys)
        if self.step.off_policy and StepBuffer.corrects is None:
            use_recipe_loss()
        config = self.trainer.config
        config.actor_rollout_ref.actor.ppo_mini_batch_size = self.step.share
        config.critic.ppo_mini_batch_size = self.step.share
        # The step from which on verl updates the actor: how a step without a gradient passes.
        config.trainer.critic_warmup = 0 if self.step.optimizer_steps else global_steps + 1
        return batch, metrics

    def _fetch(self) -> None:
        """Put the rows of the step that was begun first where verl looks for them."""
        uid, number = self.asked.popleft()
        found = unpack(Channel().ask("collect", step=number))
        StepBuffer.step = found
        put(uid, number, found.rows)
        tq.kv_put(key=uid, partition_id="train", tag={"status": "finished"})


def as_dealt(batch: Any, *args: Any, **given: Any) -> Any:
    """In the place of verl's balancing of ranks, which would mix mini-batches: ``rows.step`` has dealt out
    each mini-batch to the ranks, and filled it up. verl's queue gives rows in an order of its own.
    """
    numbers = [int(key.rsplit("_", 2)[1]) for key in batch.keys]
    batch.reorder(sorted(range(len(numbers)), key=numbers.__getitem__))
    return batch


def use_recipe_loss(corrected: bool = False) -> None:
    """Train by the recipe's own loss from now on. Where verl's says the same, both have one gradient.
    ``corrected``: it weighs fresh tokens by importance.
    """
    from agl_verl.inside.learning.loss import RecipeLoss

    StepBuffer.trainer.actor_rollout_wg.set_loss_fn(RecipeLoss(StepBuffer.recipe, corrected))
    StepBuffer.corrects = corrected


def tell_and_correct() -> None:
    """Tell the driver how far engine and trainer are apart in this step, which has not been trained yet, and
    set the loss that this calls for.
    """
    from agl_verl.inside.learning.gap import tell

    corrected = tell(StepBuffer.keys, StepBuffer.step)
    if corrected != bool(StepBuffer.corrects):
        use_recipe_loss(corrected)


class SyncSteps(StepBuffer, ReplayBuffer):  # type: ignore[misc]
    """As ``custom_sampler`` of verl's synchronous trainer."""


class AsyncSteps(StepBuffer, ReplayBufferAsync):  # type: ignore[misc]
    """As ``custom_sampler`` of verl's asynchronous trainers."""
