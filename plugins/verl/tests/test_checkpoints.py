"""Checkpoints are whole when the algorithm's state lies beside what verl saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.types import UsageError
from agl_verl.checkpoints import WEIGHTS, Checkpoints
from agl_verl.config.lora import Lora
from agl_verl.shape import ADAPTERS, KINDS, Shape


def saved(folder: Path, step: int, weights: str = "w") -> None:
    place = folder / f"global_step_{step}" / WEIGHTS
    place.mkdir(parents=True)
    (place / "model.safetensors").write_text(weights)
    (place / "config.json").write_text("{}")
    (place / "tokenizer_config.json").write_text("another library's")
    ranks(place.parent)


def ranks(part: Path, count: int = 1) -> None:
    """What every rank saves of policy or critic."""
    part.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        for rank in range(count):
            (part / f"{kind}_world_size_{count}_rank_{rank}.pt").touch()


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


LORA = Lora(rank=8)


@pytest.mark.parametrize(("shape", "lacks"), [
    (Shape(), None),
    (Shape(ranks=2), "actor/model_world_size_2_rank_0.pt"),
    (Shape(critic=True), "critic/model_world_size_1_rank_0.pt"),
    (Shape(lora=LORA), "actor/lora_train_meta.json"),
])  # fmt: skip
def test_a_part_that_is_not_here_is_named_and_the_checkpoint_does_not_count(
    shape: Shape, lacks: str | None, tmp_path: Path
) -> None:
    saved(tmp_path, 5)
    checkpoints = Checkpoints(tmp_path, shape)
    if lacks is None:
        assert checkpoints.complete(5, {})
        return
    with pytest.raises(UsageError, match=f"there is no {lacks} here; all nodes must share"):
        checkpoints.complete(5, {})
    assert checkpoints.steps() == []


def test_a_policy_without_weights_is_not_whole(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    (tmp_path / "global_step_5" / WEIGHTS / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="no actor/huggingface"):
        Checkpoints(tmp_path).complete(5, {})


def test_critic_and_matrices_belong_to_a_checkpoint_and_go_with_it(tmp_path: Path) -> None:
    shape = Shape(ranks=2, critic=True, lora=LORA)
    for step in (5, 10):
        saved(tmp_path, step)
        place = tmp_path / f"global_step_{step}"
        ranks(place / "actor", 2)
        ranks(place / "critic", 2)
        (place / ADAPTERS).write_text('{"r": 8, "lora_alpha": 16, "task_type": "CAUSAL_LM"}')
    checkpoints = Checkpoints(tmp_path, shape)
    assert checkpoints.complete(5, {}) and checkpoints.complete(10, {})
    checkpoints.prune(1)
    assert checkpoints.back_to(None) == 10 and not checkpoints.place(5).exists()
    for other, why in [
        (shape._replace(ranks=1, lora=None), "its LoRA is .* this run's None"),
        (shape._replace(lora=Lora(rank=4)), "'r': 8.* this run's .*'r': 4"),
        (shape._replace(ranks=4), "no actor/model_world_size_4_rank_0.pt; give the ranks"),
    ]:
        with pytest.raises(UsageError, match=why):
            Checkpoints(tmp_path, other).back_to(None)
    assert checkpoints.steps() == [10]
