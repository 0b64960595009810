"""The policy of a run: found by run, checkpoint and name; exported with a card that names its origin."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from agentlightning.cli import app
from agentlightning.types import UsageError
from agl_audit.exported_policy import export
from agl_audit.locations import NoSuchRun
from agl_audit.policies import NoPolicy, find_policy


def model(folder: Path, weights: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(weights)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of one policy with two checkpoints."""
    folder = tmp_path / "runs" / "mine"
    model(folder / "policy", "end")
    for step in (10, 20):
        model(folder / "checkpoints" / f"step-{step:06d}" / "policy", f"step {step}")
    (folder / "store.sqlite").touch()
    record = {
        "about": {"agent": "calc · solve | x", "tasks": "12 to train on"},
        "recipe": {"name": "grpo"},
        "seed": 3,
        "policy": "/home/someone/models/start",
        "data": {"train": "abc", "val": None},
        "note": "A note.",
    }
    (folder / "run.json").write_text(json.dumps(record))
    rewards = {"reward_before": 0.25, "ci_before": [0.2, 0.3], "reward_after": 0.75, "ci_after": [0.7, 0.8]}
    summary = {"steps": 20, "eval_tasks": 64, "chain": {"head": "f00d"}, **rewards}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_finished_run_gives_its_export(run: Path) -> None:
    found = find_policy(str(run))
    assert (found.folder, found.run, found.step) == (run / "policy", run, None)


def test_a_checkpoint_by_its_step(run: Path) -> None:
    assert (find_policy(str(run), step=10).folder / "model.safetensors").read_text() == "step 10"
    with pytest.raises(NoPolicy, match=r"no checkpoint of step 11; it has \[10, 20\]"):
        find_policy(str(run), step=11)


def test_an_interrupted_run_gives_its_newest_checkpoint(run: Path) -> None:
    for file in (run / "policy").iterdir():
        file.unlink()
    (run / "policy").rmdir()
    (run / "summary.json").unlink()
    found = find_policy(str(run))
    assert found.step == 20
    card = (export(found, run.parent / "out") / "README.md").read_text()
    assert "| steps | 20 |" in card and "interval" not in card


def test_several_policies_are_chosen_by_name(run: Path) -> None:
    for file in (run / "policy").iterdir():
        file.unlink()
    for name in ("writer", "critic"):
        model(run / "policy" / name, name)
    model(run / "policies" / "writer" / "checkpoints" / "step-000005" / "policy", "writer 5")
    with pytest.raises(NoPolicy, match="trained critic, writer: choose one with --policy"):
        find_policy(str(run))
    assert (find_policy(str(run), name="writer").folder / "model.safetensors").read_text() == "writer"
    early = find_policy(str(run), name="writer", step=5)
    assert (early.folder / "model.safetensors").read_text() == "writer 5"
    with pytest.raises(NoPolicy, match="has no policy 'x'; it has critic, writer"):
        find_policy(str(run), name="x")


def test_a_model_folder_is_its_own_policy(run: Path) -> None:
    assert find_policy(str(run / "policy")).run is None
    with pytest.raises(NoPolicy, match="is a model folder, not a run"):
        find_policy(str(run / "policy"), step=3)


@pytest.mark.plugins
def test_a_pretrained_policy_is_exported_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app(["export"]), ["export", "tiny", "mine"])
    assert said.exit_code == 0 and (tmp_path / "mine" / "config.json").is_file()


@pytest.mark.plugins
def test_an_adapter_is_no_policy_and_the_message_names_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ad").mkdir()
    (tmp_path / "ad" / "adapter_config.json").write_text("{}")
    for line in (["export", "ad", "mine"], ["serve", "ad"]):
        with pytest.raises(NoPolicy, match="ad holds an adapter of LoRA and no model: give adapter:ad"):
            CliRunner().invoke(app([line[0]]), line, catch_exceptions=False)
    with pytest.raises(UsageError, match=r"ad/adapter_model\.safetensors: there is no such file"):
        CliRunner().invoke(app(["export"]), ["export", "adapter:ad", "mine"], catch_exceptions=False)


def test_a_run_without_a_policy_and_no_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "store.sqlite").touch()
    with pytest.raises(NoPolicy, match="run empty has written no policy yet"):
        find_policy(str(tmp_path / "empty"))
    with pytest.raises(NoSuchRun):
        find_policy("no-such-run")


def test_an_export_is_a_copy_with_a_card(run: Path) -> None:
    target = export(find_policy(str(run)), run.parent / "calc")
    assert sorted(path.name for path in target.iterdir()) == [
        "README.md",
        "agl_origin.json",
        "config.json",
        "model.safetensors",
    ]
    assert (target / "model.safetensors").read_text() == "end"
    card = (target / "README.md").read_text()
    for expected in (
        "# calc",
        "| run | mine |",
        "| agent | calc · solve \\| x |",
        "| started from | models/start |",
        "| head of the run's hash chain | f00d |",
        "| after | 0.750 | 0.700 to 0.800 |",
        "64 held-out tasks",
        "A note.",
    ):
        assert expected in card
    assert "someone" not in card  # a card is published: it names no folders of this machine
    assert not [path for path in run.parent.iterdir() if path.name.startswith(".unfinished")]


def test_the_card_of_one_policy_of_several_says_what_it_started_from(run: Path) -> None:
    shutil.rmtree(run / "policy")
    model(run / "policy" / "writer", "end")
    info = json.loads((run / "run.json").read_text())
    writer = {"trained": True, "path": "/home/someone/models/base", "options": {"quantize": "int8"}}
    other = {"trained": True, "path": "/home/someone/models/other", "options": {"lora": {"rank": 8}}}
    info |= {
        "policy": None,
        "policies": {"writer": writer, "checker": other},
        "options": {"lora": {"rank": 16, "alpha": 32}},
    }
    (run / "run.json").write_text(json.dumps(info))
    card = (export(find_policy(str(run)), run.parent / "one") / "README.md").read_text()
    for row in (
        "| started from | models/base |", "| LoRA | rank 16, alpha 32 |", "| base kept in | int8 |",
    ):  # fmt: skip
        assert row in card
    assert "other" not in card and "{" not in card


def test_an_export_replaces_nothing(run: Path) -> None:
    there = run.parent / "there"
    there.mkdir()
    export(find_policy(str(run)), there)
    with pytest.raises(UsageError, match="exists and is not an empty folder"):
        export(find_policy(str(run)), there)


def test_an_unreadable_record_is_named(run: Path) -> None:
    (run / "run.json").write_text("{")
    with pytest.raises(UsageError, match=r"run\.json cannot be read"):
        export(find_policy(str(run)), run.parent / "out")
    assert not (run.parent / "out").exists()


def test_a_gguf_file_with_its_card_and_licence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agl_local.policy.bundled import tiny_policy
    from agl_local.policy.gguf import GGUFFile

    shutil.rmtree(run / "policy")
    shutil.copytree(tiny_policy(), run / "policy")
    model(run.parent / "start", "")
    (run.parent / "start" / "origin.json").write_text('{"licence": "Apache-2.0"}')
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "policy": str(run.parent / "start")}))
    target = run.parent / "out"
    said = CliRunner().invoke(app(["export"]), ["export", str(run), str(target), "--gguf", "f16"])
    assert said.exit_code == 0 and said.stdout.splitlines()[-1] == str(target)
    assert f"README.md in {target} says what llama.cpp and Ollama do otherwise" in said.stderr
    files = ["Modelfile", "README.md", "agl_origin.json", "policy.gguf"]
    assert sorted(path.name for path in target.iterdir()) == files
    metadata = GGUFFile(target / "policy.gguf").metadata
    assert (metadata["general.name"], metadata["general.license"]) == ("out", "Apache-2.0")
    assert metadata["general.description"] == "Trained with Agent Lightning in the run mine."
    card = (target / "README.md").read_text()
    assert "llama-server -m policy.gguf" in card and "- Text that is not in Unicode's form NFC" in card
    assert "| run | mine |" in card and str(run.parent) not in card
    monkeypatch.setitem(sys.modules, "agl_local.policy.gguf_export", None)
    with pytest.raises(UsageError, match="--gguf needs the plugin agl-local"):
        export(find_policy(str(run)), run.parent / "other", "f16")
    assert not (run.parent / "other").exists()


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("no weights", r"model\.safetensors: no such weights file"),
        ("no shard", r"model-1\.safetensors: no such weights file"),
        ("an index that escapes", "names files outside its own folder"),
        ("another output layer", r"lm_head\.weight differs from the embedding it is tied to"),
        ("other shapes", r"do not fit the network: .* and \d+ more"),
        ("not finite", r"NaN or infinite numbers stand in lm_head\.weight"),
    ],
)
@pytest.mark.parametrize("gguf", [None, "f32"])
def test_a_model_folder_that_cannot_be_loaded_is_not_exported(
    tmp_path: Path, fault: str, problem: str, gguf: str | None
) -> None:
    from agl_local.policy.bundled import tiny_policy

    folder = Path(shutil.copytree(tiny_policy(), tmp_path / "policy"))
    weights, config = folder / "model.safetensors", folder / "config.json"
    if fault == "no weights":
        weights.unlink()
    elif fault in ("no shard", "an index that escapes"):
        named = "model-1.safetensors" if fault == "no shard" else "../other/model.safetensors"
        index = {"weight_map": {"lm_head.weight": named}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif fault == "not finite":
        tensors = load_file(weights)
        save_file({**tensors, "lm_head.weight": tensors["lm_head.weight"] * math.nan}, weights)
    else:
        changed = {"intermediate_size": 64} if fault == "other shapes" else {"tie_word_embeddings": True}
        config.write_text(json.dumps({**json.loads(config.read_text()), **changed}))
    with pytest.raises(UsageError, match=problem):
        export(find_policy(str(folder)), tmp_path / "out", gguf)
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_a_model_folder_is_exported_without_the_plugin_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model(tmp_path / "policy", "end")
    with pytest.raises(UsageError):
        export(find_policy(str(folder)), tmp_path / "out")
    monkeypatch.setitem(sys.modules, "agl_local.policy.folder", None)
    assert (export(find_policy(str(folder)), tmp_path / "out") / "model.safetensors").read_text() == "end"


def test_prompts_have_no_gguf_file(run: Path) -> None:
    words = ["export", str(run), "out", "--prompts", "--gguf", "f16"]
    with pytest.raises(UsageError, match="give --prompts or --gguf, not both"):
        CliRunner().invoke(app(["export"]), words, catch_exceptions=False)
