"""What stands in the place of verl's agent loops: the rows of a step come from the driver.

verl calls ``create`` when engine and workers stand, and ``generate_sequences`` at the beginning of each step.
The manager tells the driver where the engine is, does what it orders before the training begins (load a
checkpoint), and takes note of each step; its rows are fetched when verl samples them (``sampler.py``).
"""

from __future__ import annotations

from typing import Any

import torch

from agl_verl.inside.serving.replica import ENGINES
from agl_verl.inside.steps.sampler import StepBuffer, use_recipe_loss
from agl_verl.inside.steps.trajectories import forget
from agl_verl.inside.steps.watch import Watch, everybody
from agl_verl.process.channel import Channel


class Manager:
    """``agent_loop_manager_class``."""

    @classmethod
    def create(cls, config: Any, llm_client: Any, **others: Any) -> Manager:
        """Say that all stands, and return when training is to begin."""
        manager = cls(config, Channel())
        manager.begin()
        return manager

    def __init__(self, config: Any, channel: Channel) -> None:
        self._config = config
        self._channel = channel

    def begin(self) -> None:
        """Follow the driver's orders up to ``fit``."""
        trainer = StepBuffer.trainer
        engines = {f"engine at {address}": actor for address, actor in ENGINES.items()}
        Watch(everybody(trainer, engines), self._lost).start()
        self._channel.ask("stage", what="workers and engines stand; the engine has its weights")
        self._channel.ask("ready", addresses=list(ENGINES), step=trainer.global_steps)
        while True:
            order = self._channel.order()
            if order["do"] == "load":
                self._load(trainer, order["path"])
                self._channel.ask("loaded", step=trainer.global_steps)
            elif order["do"] == "fit":
                trainer.total_training_steps = order["steps"]
                settings = self._config.trainer
                settings.default_local_dir, settings.save_freq = order["checkpoints"], order["save_every"]
                settings.max_actor_ckpt_to_keep = None  # the driver removes what is superfluous
                settings.max_critic_ckpt_to_keep = None
                StepBuffer.recipe = order["recipe"]
                if not order["plain"]:
                    use_recipe_loss()
                return
            else:
                raise ValueError(f"the driver's order is not known: {order}")

    def _lost(self, what: str) -> None:
        self._channel.ask("lost", what=what)

    def _load(self, trainer: Any, path: str) -> None:
        """Weights, optimizer and random states of a checkpoint, and the engine with these weights."""
        self._config.trainer.resume_mode, self._config.trainer.resume_from_path = "resume_path", path
        trainer.checkpoint_manager.sleep_replicas()  # as verl does before it loads: they share its GPUs
        trainer._load_checkpoint()
        forget()
        trainer.on_init_end()

    def generate_sequences(self, prompts: Any) -> None:
        """A step begins; its rollouts are the algorithm's."""
        uid, step = str(_value(prompts["uid"])), int(_value(prompts["global_steps"]))
        StepBuffer.asked.append((uid, step))


def _value(column: Any) -> Any:
    """The only entry of a column, whatever tensordict made of it."""
    if isinstance(column, str | int):
        return column
    first = column.reshape(-1)[0].item() if isinstance(column, torch.Tensor) else column[0]
    return getattr(first, "data", first)
