"""The examples' profiles for GPUs: each line has a place in verl's configuration, and verl accepts it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

from verl.utils.config import omega_conf_to_dataclass

from agentlightning.recipes import get
from agentlightning.train.run_file import load_config
from agl_verl.config.options import overrides, read_options
from agl_verl.inside import main

EXAMPLES = Path(__file__).parents[4] / "examples"
PROFILES = ["calc_x/verl_1gpu.yaml", "router/verl_1gpu.yaml", "spider/gpu.yaml", "werewolf/gpu.yaml"]


@pytest.fixture
def accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """verl's configuration of a profile, checked by verl, as on a machine with GPUs."""
    import verl.utils.device as device

    monkeypatch.setattr(device, "auto_set_device", lambda config: None)  # else this machine's

    def check(file: str, **more: Any) -> Any:
        config = load_config(EXAMPLES / file)
        recipe = get(config.training.algorithm, **config.training.recipe)
        options = read_options({**config.backend.options, **more})
        lines = overrides(str(config.path(str(config.backend.policy))), recipe, 1, options, str(tmp_path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # verl's own
            return main.configuration(lines)

    return check


@pytest.mark.parametrize("file", PROFILES)
@pytest.mark.parametrize("engine", ["embedded", "vllm", "sglang"])
def test_verl_accepts_every_profile_with_every_engine(
    file: str, engine: str, accepted: Callable[..., Any]
) -> None:
    found = accepted(file, engine=engine)
    rollout = found.actor_rollout_ref.rollout
    assert (rollout.name, found.trainer.device) == (engine, "cuda")
    assert rollout.engine_kwargs[engine] and rollout.calculate_log_probs
    assert rollout.logprobs_mode == "processed_logprobs"
    omega_conf_to_dataclass(rollout)  # verl's further checks


def test_the_profile_of_calc_x_is_for_vllm(accepted: Callable[..., Any]) -> None:
    rollout = accepted(PROFILES[0]).actor_rollout_ref.rollout
    assert (rollout.name, rollout.max_model_len, rollout.max_num_seqs) == ("vllm", 4096, 256)
    assert rollout.engine_kwargs.vllm.served_model_name == "policy"


def test_its_asynchronous_form_is_accepted(accepted: Callable[..., Any]) -> None:
    found = accepted(PROFILES[0], mode="colocate_async")
    assert found.trainer.v1.trainer_mode == "colocate_async"
    assert "colocate_async" in (EXAMPLES / PROFILES[0]).read_text()  # as a comment
