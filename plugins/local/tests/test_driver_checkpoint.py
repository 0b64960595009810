"""Checkpoints and exports: whole or not at all, equal bit for bit, refused when damaged."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from agentlightning.types import Recipe, Row
from agl_local.policy.checkpoint import (
    CheckpointError,
    latest,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from agl_local.policy.export import export_policy
from agl_local.policy.files import write_folder
from agl_local.policy.folder import Policy, fingerprint, load_policy
from agl_local.policy.shards import CONSTANT
from agl_local.training.freeze import freeze
from agl_local.training.update import Updater
from plugins.local.tests.driver_fixtures import make_row, tiny_config, tiny_policy, tiny_tokenizer

RECIPE = Recipe(name="r", epochs=2, minibatches=2)


def rows(policy: Policy, step: int) -> list[Row]:
    generator = torch.Generator().manual_seed(step)
    return [
        make_row(
            policy.model,  # type: ignore[arg-type]
            torch.randint(1, 250, (8,), generator=generator).tolist(),
            [(3, 8)],
            [(-1.0) ** i],
            name=f"{step}-{i}",
            version=step,
        )
        for i in range(4)
    ]


def train(policy: Policy, updater: Updater, steps: range) -> None:
    for step in steps:
        updater.update(rows(policy, step), step)


def updater_of(policy: Policy, seed: int = 0) -> Updater:
    return Updater(policy.model, RECIPE, lr=1e-2, seed=seed)


def save(folder: Path, policy: Policy, updater: Updater, step: int, keep: int | None = None) -> None:
    save_checkpoint(
        folder,
        step=step,
        version=step,
        policy=policy,
        trainer=updater.state_dict(),
        driver={"seed": 3},
        keep=keep,
    )


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    straight = tiny_policy()
    train(straight, one := updater_of(straight), range(6))

    first = tiny_policy()
    train(first, two := updater_of(first), range(3))
    random.seed(5)
    torch.manual_seed(6)
    save(tmp_path, first, two, 3)
    drawn = random.random(), torch.rand(3).tolist()

    second = tiny_policy(seed=9)
    three = updater_of(second)
    found = latest(tmp_path)
    assert found is not None and (found.step, found.version, found.driver) == (3, 3, {"seed": 3})
    three.load_state_dict(load_checkpoint(found, second))
    assert (random.random(), torch.rand(3).tolist()) == drawn
    assert fingerprint(second.model) == fingerprint(first.model)
    train(second, three, range(3, 6))
    assert fingerprint(second.model) == fingerprint(straight.model)
    assert three.steps == one.steps == 24


def test_only_the_last_ones_are_kept_and_leftovers_are_removed(tmp_path: Path) -> None:
    policy = tiny_policy()
    updater = updater_of(policy)
    (tmp_path / ".unfinished-step-000009-dead").mkdir()  # a writer was killed before the rename
    for step in (1, 2, 3, 3):
        save(tmp_path, policy, updater, step, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000002", "step-000003"]
    assert latest(tmp_path / "nowhere") is None


def test_a_writer_killed_while_replacing_loses_nothing(tmp_path: Path) -> None:
    policy = tiny_policy()
    save(tmp_path, policy, updater_of(policy), 4)
    (tmp_path / "step-000004").rename(tmp_path / ".unfinished-old-step-000004-beef")
    found = latest(tmp_path)
    assert found is not None and found.step == 4


def test_damage_is_named(tmp_path: Path) -> None:
    policy = tiny_policy()
    save(tmp_path, policy, updater_of(policy), 4)
    folder = tmp_path / "step-000004"
    weights = folder / "policy" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=r"damaged: the content of policy/model\.safetensors"):
        latest(tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"policy/model\.safetensors is missing"):
        latest(tmp_path)
    weights.write_bytes(whole)
    assert latest(tmp_path) is not None
    manifest = folder / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    with pytest.raises(CheckpointError, match=r"manifest\.json is damaged"):
        latest(tmp_path)
    manifest.write_text(json.dumps({**json.loads(text), "format": "other/7"}))
    with pytest.raises(CheckpointError, match="format 'other/7'"):
        latest(tmp_path)
    manifest.unlink()
    with pytest.raises(CheckpointError, match="no checkpoint"):
        read_checkpoint(folder)


def test_a_checkpoint_of_another_policy_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    policy = tiny_policy()
    save(tmp_path, policy, updater_of(policy), 1)
    found = latest(tmp_path)
    assert found is not None
    from agl_local.policy.folder import init_model

    wider = tiny_config(hidden=64)
    other = Policy(init_model(wider, 0), tiny_tokenizer(), wider)
    before = fingerprint(other.model)
    with pytest.raises(CheckpointError, match="another network"):
        load_checkpoint(found, other)
    assert fingerprint(other.model) == before
    renamed = tiny_tokenizer()
    renamed.backend.add_tokens(["extra"])
    with pytest.raises(CheckpointError, match="another vocabulary"):
        load_checkpoint(found, Policy(policy.model, renamed, policy.config))


def test_a_killed_write_leaves_nothing_under_the_name(tmp_path: Path) -> None:
    def fails(draft: Path) -> None:
        (draft / "half").write_text("x")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_folder(tmp_path / "target", fails)
    assert list(tmp_path.iterdir()) == []


def test_what_training_leaves_as_it_is_is_on_the_disk_once(tmp_path: Path) -> None:
    policy = tiny_policy()
    freeze(policy.model, ["*embed_tokens*", "lm_head*"])
    updater = updater_of(policy)
    files = []
    for step in (1, 2, 3):
        train(policy, updater, range(step, step + 1))
        save(tmp_path, policy, updater, step, keep=2)
        folder = tmp_path / f"step-{step:06d}" / "policy"
        files.append((folder / CONSTANT).stat())
        assert fingerprint(load_policy(folder).model) == fingerprint(policy.model)
        assert latest(tmp_path) is not None
    assert len({file.st_ino for file in files}) == 1 and files[-1].st_nlink == 2
    with torch.no_grad():
        policy.model.get_parameter("lm_head.weight")[0, 0] += 1e-7  # not what the earlier checkpoint holds
    save(tmp_path, policy, updater, 4)
    folder = tmp_path / "step-000004" / "policy"
    assert (folder / CONSTANT).stat().st_ino != files[-1].st_ino
    assert fingerprint(load_policy(folder).model) == fingerprint(policy.model)


def test_without_hard_links_every_checkpoint_has_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(old: Path, new: Path) -> None:
        raise PermissionError(f"{old} -> {new}")

    monkeypatch.setattr("agl_local.policy.shards.os.link", refused)
    policy = tiny_policy()
    freeze(policy.model, ["*embed_tokens*"])
    for step in (1, 2):
        save(tmp_path, policy, updater_of(policy), step)
        assert (tmp_path / f"step-{step:06d}" / "policy" / CONSTANT).stat().st_nlink == 1


def test_transformers_loads_a_checkpoint_with_two_files(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    policy = tiny_policy()
    freeze(policy.model, ["*embed_tokens*"])
    save(tmp_path, policy, updater_of(policy), 1)
    folder = tmp_path / "step-000001" / "policy"
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert (other(ids).logits - policy.model(ids)).abs().max().item() < 1e-5


def test_a_disk_without_room_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tiny_policy()
    free = shutil.disk_usage(tmp_path)._replace(free=10 * 2**20)
    monkeypatch.setattr("agl_local.policy.checkpoint.shutil.disk_usage", lambda _: free)
    with pytest.raises(OSError, match=r"it needs 16 MiB and the disk has 10 MiB left"):
        save(tmp_path, policy, updater_of(policy), 1)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_without_the_optimizer_is_smaller_and_its_moments_begin_anew(tmp_path: Path) -> None:
    policy = tiny_policy()
    train(policy, one := updater_of(policy), range(2))
    save(tmp_path / "with", policy, one, 2)
    save_checkpoint(tmp_path / "without", step=2, version=2, policy=policy, trainer=one.state_dict(False))
    sizes = [(tmp_path / name / "step-000002" / "trainer.pt").stat().st_size for name in ("with", "without")]
    assert sizes[1] < 40_000 < sizes[0]
    found = latest(tmp_path / "without")
    assert found is not None
    other = tiny_policy(seed=9)
    two = updater_of(other)
    two.load_state_dict(load_checkpoint(found, other))
    assert fingerprint(other.model) == fingerprint(policy.model)
    assert two.steps == one.steps == 8 and not two.optimizer.state


def test_export_is_a_folder_that_transformers_loads_with_equal_logits(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    policy = tiny_policy()
    folder = export_policy(policy, tmp_path / "model")
    assert export_policy(policy, folder) == folder  # an earlier export is replaced
    other = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(0, 259, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert (other(ids).logits - policy.model(ids)).abs().max().item() < 1e-5
    assert transformers.AutoTokenizer.from_pretrained(folder).encode("abc") == policy.tokenizer.encode("abc")


def test_export_deletes_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(FileExistsError, match=r"thesis\.tex"):
        export_policy(tiny_policy(), tmp_path)
    with pytest.raises(FileExistsError, match="is a file"):
        export_policy(tiny_policy(), tmp_path / "thesis.tex")


def test_settings_given_on_resume_win_over_those_of_the_checkpoint() -> None:
    policy = tiny_policy()
    state = updater_of(policy).state_dict()
    other = Updater(policy.model, RECIPE, lr=5e-4, weight_decay=0.5, betas=(0.5, 0.6))
    other.load_state_dict(state)
    group = other.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (5e-4, 0.5, (0.5, 0.6))
