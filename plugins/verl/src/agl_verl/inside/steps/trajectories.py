"""A step's rows in verl's queue, as what it calls the trajectories of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from agl_verl.rows import OFF_POLICY, SEGMENTS, STALE, WEIGHTS, TrainRow


def put(uid: str, step: int, rows: Sequence[TrainRow]) -> None:
    """Rows as trajectories of prompt ``uid``."""
    fields, tags = [], []
    some = any(row.trained_tokens for row in rows)
    for row in rows:
        prompt, response = _longs(row.prompt.view()), _longs(row.response.view())
        whole = torch.cat((prompt, response))
        columns = row.columns()
        mask = torch.from_numpy(columns.mask).long()
        fields.append(
            {
                "prompts": prompt,
                "responses": response,
                "input_ids": whole,
                "position_ids": torch.arange(len(whole)),
                "response_mask": mask,
                "loss_mask": mask,
                "rollout_log_probs": torch.from_numpy(columns.logprobs).float(),
                "rm_scores": torch.from_numpy(columns.carrier).float(),
                WEIGHTS: torch.from_numpy(columns.weights).float(),
                SEGMENTS: torch.from_numpy(columns.segments).long(),
                STALE: torch.from_numpy(columns.stale).long(),
                OFF_POLICY: torch.from_numpy(columns.off_policy).long(),
                "uid": uid,
                "num_turns": 1,
                "extra_fields": {"reward_extra_info": {}},
            }
        )
        tags.append(
            {
                "status": "success",
                # verl leaves such rows out of its figures, and has to have one.
                "is_padding": some and not row.trained_tokens,
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


def _longs(values: memoryview) -> torch.Tensor:
    return torch.frombuffer(values, dtype=torch.int32).long()


def forget() -> None:
    """Remove what a checkpoint of verl's asynchronous trainers brings back: rows of a step that is over."""
    left = (tq.kv_list("train") or {}).get("train", {})
    if left:
        tq.kv_clear(keys=list(left), partition_id="train")
