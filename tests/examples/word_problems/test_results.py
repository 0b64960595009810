"""The README's table is that of the kept result."""

from __future__ import annotations

import json
from typing import Any

import pytest

from word_problems.results import README, RESULT, filled, markdown


def figures(base: float, sft: float, sft_rl: float) -> dict[str, Any]:
    names = ("random_operator", "common_operator", "larger_first", "oracle")
    stages = {"base": base, "sft": sft, "sft_rl": sft_rl}
    return {
        **stages,
        "ci": {name: [value - 0.05, value + 0.05] for name, value in stages.items()},
        "n": 303,
        "baselines": {name: {"reward": 0.1, "ci": [0.05, 0.15]} for name in names},
    }


def result(**stages: float) -> dict[str, Any]:
    return {
        **figures(**stages),
        "gsm8k_one_step": {**figures(0.01, 0.02, 0.03), "n": 213},
        "sft_settings": {"chats": 441, "epochs": 3, "lr": 1e-4, "val_losses": [4.0, 0.5]},
        "validation": {"sft": 0.4, "sft_rl": 0.5},
        "seconds": {"sft": 1.0, "rl": 2.0, "evaluations": 3.0},
        "rl_steps": 20,
        "seed": 1,
        "calls": 2000,
        "calls_exact": 2000,
    }


@pytest.mark.slow
def test_the_table_has_a_row_for_everyone() -> None:
    table = markdown(result(base=0.13, sft=0.40, sft_rl=0.50))
    assert "SVAMP, test (n = 303) | GSM8K, one step (n = 213)" in table
    assert "| fine-tuned on the training split, greedy | 0.400 (0.35–0.45) | 0.020 (-0.03–0.07) |" in table
    assert "validation loss 4.000 → 0.500" in table and "2,000 of 2,000 calls are exact" in table
    assert "adds nothing" not in table
    assert "adds nothing" in markdown(result(base=0.13, sft=0.40, sft_rl=0.44))


def test_the_readme_has_its_marks() -> None:
    text = README.read_text()
    once = filled(text, result(base=0.13, sft=0.40, sft_rl=0.50))
    assert once != text and filled(once, result(base=0.13, sft=0.40, sft_rl=0.50)) == once
    with pytest.raises(ValueError, match="marks"):
        filled("# no marks", result(base=0.1, sft=0.1, sft_rl=0.1))


@pytest.mark.slow
def test_the_readme_shows_the_kept_result() -> None:
    if not RESULT.exists():
        assert "put here by `results.py`" in README.read_text()
        return
    text = README.read_text()
    assert filled(text, json.loads(RESULT.read_text())["result"]) == text, (
        "run python -m word_problems.results"
    )
