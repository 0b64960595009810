"""Modes as options, and as lines of verl's configuration."""

from __future__ import annotations

from typing import Any

import pytest

import agentlightning as agl
from agl_verl.config.modes import BUFFERS, ModeError
from agl_verl.config.options import overrides, read_options

APART = {"mode": "separate_async", "device": "cuda", "engine": "vllm", "engine_gpus": 2}


def lines(**options: Any) -> dict[str, str]:
    made = overrides("policy", agl.GRPO(), 1, read_options(options), "folder")
    return dict(line.lstrip("+").split("=", 1) for line in made)


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_the_mode_is_verls_and_the_buffer_is_ours(mode: str) -> None:
    found = lines(**APART) if mode == "separate_async" else lines(mode=mode)
    assert found["trainer.v1.trainer_mode"] == mode
    assert found["trainer.v1.sampler.custom_sampler.name"] == BUFFERS[mode]
    # verl itself neither prefetches nor drops
    assert found.get(f"trainer.v1.{mode}.num_warmup_batches") == (None if mode == "sync" else "0")
    assert ("trainer.v1.sampler.max_off_policy_threshold" in found) == (mode != "sync")


def test_engines_apart_have_gpus_of_their_own() -> None:
    found = lines(**APART, ranks=4)
    rollout = "actor_rollout_ref.rollout"
    assert (found[f"{rollout}.n_gpus_per_node"], found["trainer.n_gpus_per_node"]) == ("2", "4")
    assert found[f"{rollout}.checkpoint_engine.backend"] == "nccl"
    assert found["actor_rollout_ref.hybrid_engine"] == "False"
    assert found["data.train_batch_size"] == found["trainer.v1.separate_async.parameter_sync_step"] == "1"


@pytest.mark.parametrize(("given", "why"), [
    ({"mode": "separate_async"}, "for GPUs; on a CPU there is colocate_async"),
    ({**APART, "engine": "embedded"}, "say engine: vllm or sglang"),
    ({**APART, "engine_gpus": 0}, "engine_gpus is 0; say how many"),
    ({**APART, "tensor_parallel": 4, "ranks": 4}, r"a multiple of tensor_parallel \(4\)"),
    ({"engine_gpus": 1}, "in mode separate_async"),
])  # fmt: skip
def test_modes_that_cannot_be_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ModeError, match=why):
        read_options(given)


def test_a_mode_that_there_is_not() -> None:
    with pytest.raises(agl.UsageError, match="mode"):
        read_options({"mode": "async"})
