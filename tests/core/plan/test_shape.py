"""Models by size, by name and by folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentlightning.plan.memory import parameter_count
from agentlightning.plan.shape import MODELS, NetworkShape, find_model
from agentlightning.types.base import ConfigError

SMALL: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "millions"),
    [("Llama-3.1-8B", 8_030), ("Qwen2.5-14B", 14_770), ("Qwen2.5-32B", 32_764), ("Qwen2.5-72B", 72_706)],
)
def test_parameters_are_the_published_ones(name: str, millions: int) -> None:
    assert round(parameter_count(MODELS[name]) / 1e6) == millions


@pytest.mark.parametrize("text", ["7b", "7B", "Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct", "qwen2.5-coder-7b"])
def test_a_model_has_many_names(text: str) -> None:
    assert find_model(text) == ("Qwen2.5-7B", MODELS["Qwen2.5-7B"])


def test_a_folder_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    wanted = NetworkShape(64, 128, 2, 4, 2, 16, 100, qkv_bias=True)
    assert find_model(str(tmp_path)) == (tmp_path.name, wanted)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (json.dumps({**SMALL, "num_experts": 8}), "num_experts: the planner's formulas are those of dense"),
        (json.dumps({**SMALL, "hidden_size": 0}), "hidden_size = 0: a number of at least 1"),
        (json.dumps({k: v for k, v in SMALL.items() if k != "vocab_size"}), "vocab_size = None"),
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
    ],
)
def test_a_folder_that_cannot_be_planned_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=problem) as told:
        find_model(str(tmp_path))
    assert str(tmp_path) in str(told.value)


def test_an_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"--model '9b'.*7b.*Qwen2.5-72B.*config.json"):
        find_model("9b")
