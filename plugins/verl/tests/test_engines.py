"""Which engine serves: the lines for verl, what is refused, and the addresses that the gateway gets."""

from __future__ import annotations

import pytest

import agentlightning as agl
from agentlightning.types import UsageError
from agl_verl.config.engines import key_of
from agl_verl.config.options import overrides, read_options

ROLLOUT = "actor_rollout_ref.rollout"
GPU = {"device": "cuda", "engine": "vllm"}


def lines(name: str = "policy", **given: object) -> dict[str, str]:
    made = overrides("/p", agl.GRPO(), 7, read_options(given), "/scratch", name)
    assert len({line.lstrip("+").split("=", 1)[0] for line in made}) == len(made)
    return dict(line.lstrip("+").split("=", 1) for line in made)


def test_the_embedded_engine() -> None:
    found = lines(ranks=4, engines=2, max_num_seqs=8, max_len=512, engine_threads=1)
    own = f"{ROLLOUT}.engine_kwargs.embedded"
    assert found[f"{ROLLOUT}.name"] == "embedded" and found[f"{ROLLOUT}.free_cache_engine"] == "False"
    assert {key.removeprefix(f"{own}."): value for key, value in found.items() if key.startswith(own)} == {
        "slots": "8", "max_len": "512", "device": "cpu", "engines": "2", "threads": "1",
    }  # fmt: skip


def test_vllm_says_what_exact_capture_needs() -> None:
    found = lines(
        "wolves", **GPU, ranks=8, tensor_parallel=2, engine_memory=0.6, max_num_seqs=256, max_len=4096
    )
    assert found[f"{ROLLOUT}.name"] == "vllm" and found[f"{ROLLOUT}.tensor_model_parallel_size"] == "2"
    assert found[f"{ROLLOUT}.logprobs_mode"] == "processed_logprobs"
    assert (found[f"{ROLLOUT}.top_p"], found[f"{ROLLOUT}.top_k"]) == ("1.0", "-1")
    assert found[f"{ROLLOUT}.gpu_memory_utilization"] == "0.6"
    assert (found[f"{ROLLOUT}.max_model_len"], found[f"{ROLLOUT}.max_num_seqs"]) == ("4096", "256")
    own = f"{ROLLOUT}.engine_kwargs.vllm"
    assert found[f"{own}.served_model_name"] == "wolves"
    assert found[f"{own}.enable_auto_tool_choice"] == "True" and found[f"{own}.tool_call_parser"] == "hermes"
    assert not [key for key in found if "embedded" in key or "api_key" in key]


def test_a_policy_of_any_name_is_a_name() -> None:
    assert lines("true", **GPU)[f"{ROLLOUT}.engine_kwargs.vllm.served_model_name"] == "'true'"


def test_sglang_takes_no_defaults_from_the_models_folder() -> None:
    found = lines(device="cuda", engine="sglang", tool_parser="qwen3_coder")
    own = f"{ROLLOUT}.engine_kwargs.sglang"
    assert found[f"{own}.sampling_defaults"] == "openai"
    assert found[f"{own}.tool_call_parser"] == "qwen3_coder"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"engine": "vllm"}, r"engine: verl's vllm servers are for GPUs .*engine: embedded"),
        ({**GPU, "engines": 2}, r"engines: verl launches a vllm server for each tensor_parallel ranks"),
        ({**GPU, "ranks": 3, "tensor_parallel": 2}, r"3 ranks cannot be shared by servers of 2"),
        ({**GPU, "engine_memory": 1.5}, r"engine_memory above 0 and below 1"),
        ({"engines": 0}, r"engines and tensor_parallel must be 1 or more"),
        ({"engines": 3, "ranks": 2}, r"engines: 3 engines want as many ranks, there are 2"),
        ({"tensor_parallel": 2, "ranks": 2}, r"tensor_parallel: the embedded engine has no such thing"),
        ({"tool_parser": "hermes"}, r"tool_parser: the embedded engine has no such thing"),
        ({"engine_memory": 0.9}, r"engine_memory: the embedded engine has no such thing"),
        ({**GPU, "engine_threads": 2}, r"engine_threads: verl's vllm servers have no such thing"),
        ({"engine": "trtllm"}, r"engine"),
        ({"overrides": [f"{ROLLOUT}.name=vllm"]}, r"say it with the option engine"),
        ({"overrides": [f"{ROLLOUT}.logprobs_mode=raw_logprobs"]}, r"logprobs must be those of what was"),
        ({"overrides": [f"{ROLLOUT}.disaggregation.enabled=True"]}, r"answers no agent"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_options(given)


def test_the_key_of_the_servers_is_not_the_channels_secret() -> None:
    assert key_of("a") != key_of("b") and "secret" not in key_of("secret") and len(key_of("secret")) == 64
