"""A step's rows in verl's queue, as what it calls the trajectories of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agentlightning.types.arrays import Flags, Floats, Ints
from agentlightning.types.tokens import TokenIds
from agl_verl.rows import OFF_POLICY, SEGMENTS, STALE, WEIGHTS, TrainRow

_NO = TokenIds([0])
_OFF = Flags([0])
EMPTY = TrainRow(_NO, _NO, _OFF, Floats([0]), Floats([0]), Floats([0]), Ints([-1]), 0, 0, _OFF, _OFF)
"""Stands for a step in which nothing is trained: verl cannot go on without a row."""


def put(uid: str, step: int, rows: Sequence[TrainRow]) -> None:
    """Rows as trajectories of prompt ``uid``."""
    fields, tags = [], []
    for row in rows or [EMPTY]:
        prompt, response = _longs(row.prompt.view()), _longs(row.response.view())
        whole = torch.cat((prompt, response))
        mask = _longs(row.mask, torch.int8)
        fields.append(
            {
                "prompts": prompt,
                "responses": response,
                "input_ids": whole,
                "position_ids": torch.arange(len(whole)),
                "response_mask": mask,
                "loss_mask": mask,
                "rollout_log_probs": _floats(row.logprobs),
                "rm_scores": _floats(row.carrier),
                WEIGHTS: _floats(row.weights),
                SEGMENTS: _longs(row.segments),
                STALE: _longs(row.stale, torch.int8),
                OFF_POLICY: _longs(row.off_policy, torch.int8),
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


def _longs(values: Flags | Ints | memoryview, kind: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.frombuffer(values, dtype=kind).long() if len(values) else torch.empty(0, dtype=torch.long)


def _floats(values: Floats) -> torch.Tensor:
    return torch.frombuffer(values, dtype=torch.float64).float() if len(values) else torch.empty(0)


def forget() -> None:
    """Remove what a checkpoint of verl's asynchronous trainers brings back: rows of a step that is over."""
    left = (tq.kv_list("train") or {}).get("train", {})
    if left:
        tq.kv_clear(keys=list(left), partition_id="train")
