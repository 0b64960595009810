"""Checkpoints are whole when the algorithm's state lies beside what verl saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.types import UsageError
from agl_verl.checkpoints import WEIGHTS, Checkpoints


def saved(folder: Path, step: int, weights: str = "w") -> None:
    place = folder / f"global_step_{step}" / WEIGHTS
    place.mkdir(parents=True)
    (place / "model.safetensors").write_text(weights)
    (place / "config.json").write_text("{}")
    (place / "tokenizer_config.json").write_text("another library's")


def test_one_without_the_state_does_not_count(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    saved(tmp_path, 5)
    saved(tmp_path, 10)
    assert checkpoints.steps() == []
    assert checkpoints.complete(5, {"step": 5})
    assert not checkpoints.complete(7, {})
    assert checkpoints.steps() == [5]
    assert checkpoints.state(5) == {"step": 5}


def test_going_back_deletes_what_came_later(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (5, 10, 15):
        saved(tmp_path, step)
    checkpoints.complete(5, {})
    checkpoints.complete(10, {})
    assert checkpoints.back_to(None) == 10
    assert not (tmp_path / "global_step_15").exists()
    assert checkpoints.back_to(5) == 5
    assert checkpoints.steps() == [5]
    with pytest.raises(UsageError, match="no checkpoint of step 8"):
        checkpoints.back_to(8)
    assert checkpoints.back_to(0) is None
    assert checkpoints.steps() == []


def test_only_what_is_superfluous_goes(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (5, 10, 15, 20):
        saved(tmp_path, step)
    for step in (5, 10, 15):
        checkpoints.complete(step, {})
    checkpoints.prune(2)
    assert checkpoints.steps() == [10, 15]
    assert checkpoints.place(20).is_dir()  # being written
    assert not checkpoints.place(5).exists()


def test_none_to_go_back_to(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nowhere").back_to(None) is None


def test_an_export_has_the_new_weights_and_the_old_tokenizer(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        (policy / name).write_text("old")
    saved(tmp_path / "checkpoints", 3, weights="new")
    out = Checkpoints(tmp_path / "checkpoints").export(3, policy, tmp_path / "out")
    assert (out / "model.safetensors").read_text() == "new"
    assert (out / "tokenizer_config.json").read_text() == "old"
    assert (out / "config.json").read_text() == "old"
