"""The names under which users meet the search: ``APOTrainer``, a run's file, and ``agl.APO``."""

from __future__ import annotations

import pytest

import agentlightning as agl
from agentlightning.train.run_file import load_config
from agentlightning.types.base import ConfigError
from agl_apo.beam import APO

from .conftest import FIRST, TASKS, World, ask


@pytest.mark.plugins
def test_apo_trainer(world_in_a_thread: World) -> None:
    world = world_in_a_thread
    fields = {
        "policy": {"agent": agl.LLM(endpoint=world.model.url, model="small")},
        "output": world.folder,
        "trackers": [],
    }
    trainer = agl.APOTrainer(critic=world.critic, beam_rounds=4, beam_width=1, branch_factor=1, fields=fields)
    summary = trainer.train(ask, TASKS[:8], TASKS[8:], {"prompt_template": FIRST})
    assert (summary["reward_before"], summary["reward_after"]) == (0.0, 1.0)


@pytest.mark.plugins
def test_agl_apo_is_the_plugins() -> None:
    assert isinstance(agl.APO(critic="policy"), APO)
    assert isinstance(agl.APO[str](critic="policy"), APO)


FILE = """
agent: {target: "nowhere:agent"}
training:
  algorithm: apo
  settings: {beam_rounds: 1, critic: {endpoint: "http://127.0.0.1:9/v1", model: m}, prompts: {p: "say {x}"}}
backend: {policy: {agent: {endpoint: "http://127.0.0.1:9/v1", model: m}}}
"""


@pytest.mark.plugins
def test_a_run_file_names_the_search_and_its_settings(tmp_path) -> None:
    from agentlightning.plugins.manager import load
    from agentlightning.train.trainer import algorithm_of

    (tmp_path / "run.yaml").write_text(FILE)
    config = load_config(tmp_path / "run.yaml")
    made = algorithm_of(config, load(), None)
    assert made.trains_policy is False and made.beam_rounds == 1
    (tmp_path / "run.yaml").write_text(FILE.replace("beam_rounds", "rounds"))
    with pytest.raises(ConfigError, match=r"training\.settings: .*rounds"):
        algorithm_of(load_config(tmp_path / "run.yaml"), load(), None)
    (tmp_path / "run.yaml").write_text(FILE.replace("apo", "grpo"))
    with pytest.raises(ConfigError, match=r"training\.settings: a recipe has none"):
        algorithm_of(load_config(tmp_path / "run.yaml"), load(), None)
