"""What stands in the place of verl's agent loops: the rows of a step come from the driver.

verl calls ``create`` when engine and workers stand, and ``generate_sequences`` at the beginning of each step.
The manager tells the driver where the engine is, does what it orders before the training begins (load a
checkpoint), and fetches each step's rows. Invariant: what verl trains in a step are exactly the rows that
were collected for it.
"""

from __future__ import annotations

from typing import Any

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agl_verl.channel import Channel
from agl_verl.inside.replica import ENGINES
from agl_verl.inside.sampler import StepBuffer
from agl_verl.inside.watch import Watch, everybody
from agl_verl.rows import SEGMENTS, WEIGHTS, TrainRow, unpack

EMPTY = TrainRow([0], [0], [0], [0.0], [0.0], [0.0], [-1], 0, 0)
"""Stands for a step in which nothing is trained: verl cannot go on without a row."""


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
                if order["loss"] is not None:
                    from agl_verl.inside.loss import RecipeLoss

                    trainer.actor_rollout_wg.set_loss_fn(RecipeLoss(order["loss"]))
                return
            else:
                raise ValueError(f"the driver's order is not known: {order}")

    def _lost(self, what: str) -> None:
        self._channel.ask("lost", what=what)

    def _load(self, trainer: Any, path: str) -> None:
        """Weights, optimizer and random states of a checkpoint, and the engine with these weights."""
        self._config.trainer.resume_mode, self._config.trainer.resume_from_path = "resume_path", path
        trainer._load_checkpoint()
        trainer.on_init_end()

    def generate_sequences(self, prompts: Any) -> None:
        """The rows of a step, put where verl looks for them. Blocks until its rollouts have ended."""
        uid, step = str(_value(prompts["uid"])), int(_value(prompts["global_steps"]))
        found = unpack(self._channel.ask("collect", step=step))
        StepBuffer.step = found
        put(uid, step, found.rows or [EMPTY])
        tq.kv_put(key=uid, partition_id="train", tag={"status": "finished"})


def _value(column: Any) -> Any:
    """The only entry of a column, whatever tensordict made of it."""
    if isinstance(column, str | int):
        return column
    first = column.reshape(-1)[0].item() if isinstance(column, torch.Tensor) else column[0]
    return getattr(first, "data", first)


def put(uid: str, step: int, rows: list[TrainRow]) -> None:
    """Rows as verl's trajectories of prompt ``uid``."""
    fields, tags = [], []
    for row in rows:
        whole = row.prompt + row.response
        mask = torch.tensor(row.mask)
        fields.append(
            {
                "prompts": torch.tensor(row.prompt),
                "responses": torch.tensor(row.response),
                "input_ids": torch.tensor(whole),
                "position_ids": torch.arange(len(whole)),
                "response_mask": mask,
                "loss_mask": mask,
                "rollout_log_probs": torch.tensor(row.logprobs, dtype=torch.float32),
                "rm_scores": torch.tensor(row.carrier, dtype=torch.float32),
                WEIGHTS: torch.tensor(row.weights, dtype=torch.float32),
                SEGMENTS: torch.tensor(row.segments),
                "uid": uid,
                "num_turns": 1,
                "extra_fields": {"reward_extra_info": {}},
            }
        )
        tags.append(
            {
                "status": "success",
                "prompt_len": len(row.prompt),
                "response_len": len(row.response),
                "seq_len": len(whole),
                "global_steps": step,
                "min_global_steps": row.oldest,
                "max_global_steps": row.newest,
            }
        )
    keys = [f"{uid}_{number}_0" for number in range(len(rows))]
    tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train")
