"""A step's rows in verl's queue, as what it calls the trajectories of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agl_verl.rows import SEGMENTS, STALE, WEIGHTS, TrainRow

EMPTY = TrainRow([0], [0], [0], [0.0], [0.0], [0.0], [-1], 0, 0, [0])
"""Stands for a step in which nothing is trained: verl cannot go on without a row."""


def put(uid: str, step: int, rows: Sequence[TrainRow]) -> None:
    """Rows as trajectories of prompt ``uid``."""
    fields, tags = [], []
    for row in rows or [EMPTY]:
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
                STALE: torch.tensor(row.stale),
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
    keys = [f"{uid}_{number}_0" for number in range(len(fields))]
    tq.kv_batch_put(keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id="train")


def forget() -> None:
    """Remove what a checkpoint of verl's asynchronous trainers brings back: rows of a step that is over."""
    left = (tq.kv_list("train") or {}).get("train", {})
    if left:
        tq.kv_clear(keys=list(left), partition_id="train")
