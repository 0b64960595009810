"""The profile for verl, as far as it can be carried out without LangGraph and without verl."""

from __future__ import annotations

from pathlib import Path

import pytest

import spider
from agentlightning.credit.checks import check_credit_fields, check_supported_fields
from agentlightning.plugins.manager import load
from agentlightning.recipes import get
from agentlightning.train.config import RunConfig
from agentlightning.train.configured import load_data
from agentlightning.train.run_file import load_config
from agentlightning.types import UsageError
from agentlightning.types.base import ConfigError

supported = pytest.importorskip("agl_verl.supported_fields")
options = pytest.importorskip("agl_verl.config.options")
GPU = Path(spider.__file__).parent / "gpu.yaml"


def lines(config: RunConfig) -> list[str]:
    """What verl is given, if nothing is refused."""
    recipe = get(config.training.algorithm, **config.training.recipe)
    supported.refuse(recipe)
    check_supported_fields(recipe, "verl", supported.SUPPORTED_FIELDS)
    check_credit_fields(recipe, **load().credit_functions)
    found: list[str] = options.overrides(
        "model", recipe, config.training.seed, options.read_options(config.backend.options), "scratch"
    )
    return found


@pytest.mark.plugins
def test_the_gpu_profile_is_one_that_verl_carries_out() -> None:
    config = load_config(GPU)
    assert config.backend.driver == "verl" and config.agent.select == ["write", "rewrite"]
    found = lines(config)
    for line in (
        "actor_rollout_ref.actor.optim.lr=1e-06",
        "actor_rollout_ref.actor.clip_ratio_low=0.2",
        "actor_rollout_ref.actor.clip_ratio_high=0.3",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24576",
        "data.max_prompt_length=6144",
    ):
        assert line in found
    train, val = (
        load_data(part, config, "environment") for part in (config.environment.train, config.environment.val)
    )
    assert train and val and {"db_id", "question", "query"} <= set(train[0])


@pytest.mark.slow
@pytest.mark.plugins
@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("training.recipe", {"group_size": 4, "credit": "per_cal"}, ConfigError),
        ("backend.options", {"device": "cuda", "learning_rate": 1e-6}, UsageError),
    ],
)
def test_a_profile_that_cannot_be_carried_out_is_refused(
    key: str, value: object, error: type[Exception]
) -> None:
    with pytest.raises(error):
        lines(load_config(GPU, {key: value}))
