"""The configurations can be carried out, as far as that is known before a run begins."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("langgraph", reason="the agent is a LangGraph graph")
pytest.importorskip("langchain_openai")

from agentlightning.cli.options import read
from agentlightning.credit.checks import check_credit_fields, check_supported_fields
from agentlightning.plugins.manager import load as load_plugins
from agentlightning.train.configured import configure
from spider.agent import agent, brief
from spider.budget import Budget
from spider.evaluate import POLICY

EXAMPLE = POLICY.parent


@pytest.mark.slow
def test_the_cpu_profile() -> None:
    trainer, chosen, train, val = configure(read(EXAMPLE / "cpu.yaml", []))
    assert trainer.config.agent.select == ["write", "rewrite"]
    assert chosen.function.__self__ is brief  # type: ignore[attr-defined]
    assert trainer.config.backend.policy.path == POLICY
    assert len(train) == 4_000 and len(val) >= 200
    assert not {q["query"] + q["db_id"] for q in train} & {q["query"] + q["db_id"] for q in val}
    assert set(trainer.config.environment.headroom) == {"oracle", "random"}


@pytest.mark.slow
@pytest.mark.plugins
def test_the_gpu_profile_has_the_public_settings_and_verl_carries_them_out(tmp_path: Path) -> None:
    supported = pytest.importorskip("agl_verl.supported_fields")
    options = pytest.importorskip("agl_verl.config.options")
    named = Path(read(EXAMPLE / "gpu.yaml", []).backend.policy or "")
    (tmp_path / named.name).mkdir()  # a folder of that name stands for the download
    config = read(EXAMPLE / "gpu.yaml", [f"backend.policy={tmp_path / named.name}"])
    trainer, chosen, train, val = configure(config)
    recipe = trainer.recipe
    assert (trainer.config.training.batch_size, recipe.group_size, recipe.clip_low, recipe.clip_high) == (
        32,
        4,
        0.2,
        0.3,
    )
    assert (recipe.kl, recipe.entropy, recipe.temperature) == (0.0, 0.0, 1.0)
    supported.refuse(recipe)
    check_supported_fields(recipe, "verl", supported.SUPPORTED_FIELDS)
    check_credit_fields(recipe, **load_plugins().credit_functions)
    found = options.read_options(trainer.config.backend.options)
    assert (found.lr, found.max_len, found.device) == (1e-6, 4_096 + 2_048, "cuda")
    assert trainer.config.gateway.max_len - trainer.config.gateway.reserve == 4_096
    assert trainer.config.gateway.over_length == "drop"
    lines = options.overrides("model", recipe, 1, found, "scratch")
    assert "actor_rollout_ref.actor.optim.lr=1e-06" in lines
    assert agent.budget == Budget() and agent.budget.answer_tokens == 2_048 and agent.budget.turns == 3
    assert chosen.function.__self__ is agent  # type: ignore[attr-defined]
    assert train and val and trainer.config.agent.select == ["write", "rewrite"]
    assert str(trainer.config.backend.policy.path.name) == "Qwen2.5-Coder-1.5B-Instruct"
