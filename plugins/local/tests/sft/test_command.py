"""``agl sft``: the folder it writes, what it refuses, and what an interrupted run leaves."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
import torch
import typer
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from agentlightning.plugins.manager import load as load_plugins
from agentlightning.types import UsageError
from agl_local.policy.adapters import add_adapter
from agl_local.policy.fetch import fetch
from agl_local.policy.folder import fingerprint, load_policy
from agl_local.sft.chats import chats_of, encode
from agl_local.sft.command import register
from agl_local.training.sft import sft_loss
from plugins.local.tests.driver_fixtures import saved_policy
from plugins.local.tests.sft.test_chats import chat

ROWS = [chat(str(i), "yes" if i % 2 else "no") for i in range(6)]


@pytest.fixture
def start(tmp_path, monkeypatch) -> Path:
    """The policy to start from; the working directory is its parent."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.jsonl", ROWS)
    return saved_policy(tmp_path / "start")


def write(file: Path, rows: list[object]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def agl_sft(*line: str) -> list[str]:
    """Run the command on the working directory's files; return the lines of stdout, or raise its error."""
    app = typer.Typer()
    register(app)
    given = ["--policy", "start", "--data", "train.jsonl", "--output", "out/tuned", "--threads", "1"]
    result = CliRunner().invoke(app, [*given, "--batch-size", "2", "--lr", "1e-2", *line])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_writes_a_policy_with_its_card(start, tmp_path) -> None:
    (folder,) = agl_sft("--epochs", "2")
    assert Path(folder) == tmp_path / "out/tuned"
    before, after = load_policy(start), load_policy(folder)
    assert fingerprint(before.model) != fingerprint(after.model)
    assert after.tokenizer.template is not None and after.tokenizer.eos_ids == before.tokenizer.eos_ids
    card = (Path(folder) / "README.md").read_text()
    for fact in ('base_model: "start"', "train.jsonl", "| epochs | 2 |", "| steps | 6 |"):
        assert fact in card
    assert fingerprint(before.model) in card
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tuned"]


def test_the_summary_repeats_with_its_seed(start) -> None:
    write(Path("val.jsonl"), ROWS[:2])
    summaries = [
        json.loads(agl_sft("--json", "--val", "val.jsonl", "--epochs", "1", "--seed", seed)[-1])
        for seed in ("1", "1", "2")
    ]
    for name in ("loss", "val_losses", "parent_sha256", "data_sha256", "chats", "too_long", "val_chats"):
        assert summaries[0][name] == summaries[1][name]
    assert summaries[0]["loss"] != summaries[2]["loss"]
    assert summaries[0]["peak_mb"] > 0 and summaries[0]["steps"] == 3


def test_rows_of_a_function(start, tmp_path, monkeypatch) -> None:
    (tmp_path / "rows_for_sft.py").write_text(
        "def some():\n    return [{'messages': [{'role': 'user', 'content': 'a'},"
        " {'role': 'assistant', 'content': 'b'}]}]\n"
        "def none():\n    raise OSError('the disk is gone')\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    summary = json.loads(agl_sft("--data", "rows_for_sft:some", "--json", "--epochs", "1")[-1])
    assert (summary["data"], summary["chats"]) == ("rows_for_sft:some", 1)
    for target, problem in (
        ("rows_for_sft:none", "raised OSError: the disk is gone"),
        ("rows_for_sft:more", "neither a file nor module:function: .*'more'"),
        ("no_such_module:f", "No module named 'no_such_module'"),
    ):
        with pytest.raises(UsageError, match=problem):
            agl_sft("--data", target)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (["--data", "bad.jsonl"], "bad.jsonl:2: no assistant message"),
        (["--val", "bad.jsonl"], "bad.jsonl:2"),
        (["--policy", "nowhere"], "no model is called 'nowhere'"),
        (["--output", "kept"], "which an export would delete"),
        (["--output", "train.jsonl"], "is a file"),
        (["--lr", "0"], "lr must be positive"),
        (["--freeze", "nothing"], "'nothing' matches no parameter"),
        (["--max-len", "5"], "all 6 chats have more than 5 tokens: raise max_len; .* 256 positions"),
        (["--data", "long.jsonl"], "all 1 chats have more than 256 tokens: more than the policy has"),
        (["--lora", "100000"], "rank 100000 is above the shorter side of every matrix .at most 32, of model"),
        (["--output", "start/tuned"], "start/tuned is in .*start, where training starts: name another"),
        (["--lora", "2", "--output", "start"], "start is in .*start, where training starts"),
        (["--dtype", "bfloat16"], "needs lora"),
        (["--quantize", "int8"], "quantize int8 needs lora"),
        (["--lora", "2", "--quantize", "int4"], "quantize 'int4' is not one of int8, nf4"),
        (["--lora", "2", "--device", "cuda:77"], "device 'cuda:77' cannot be used"),
    ],
)
def test_what_is_refused_leaves_no_folder(start, tmp_path, line: list[str], problem: str) -> None:
    write(tmp_path / "bad.jsonl", [ROWS[0], chat("only a question")])
    write(tmp_path / "long.jsonl", [chat("a" * 300, "b")])
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=problem):
        agl_sft(*line)
    assert load_policy(start) and not (start / "tuned").exists()
    assert not (tmp_path / "out").exists() and (tmp_path / "kept/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("weight", "line", "problem"),
    [
        (math.nan, [], "start cannot be fine-tuned: NaN or infinite numbers stand in model.norm.weight"),
        (math.nan, ["--lora", "2", "--quantize", "nf4"], "start cannot be fine-tuned: NaN or infinite"),
        (1e38, [], "none of the 3 steps had a finite loss and gradient, so nothing was trained"),
        (1.0, ["--lr", "1e30"], r"training ended with the loss .*; choose a lower lr than 1e\+30"),
    ],
)
def test_a_training_without_finite_numbers_fails_and_leaves_no_folder(
    start, tmp_path, weight: float, line: list[str], problem: str
) -> None:
    tensors = load_file(start / "model.safetensors")
    save_file(
        {**tensors, "model.norm.weight": tensors["model.norm.weight"] * weight}, start / "model.safetensors"
    )
    with pytest.raises(UsageError, match=problem):
        agl_sft("--epochs", "1", *line)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_run_leaves_the_earlier_folder(start, tmp_path, monkeypatch) -> None:
    agl_sft("--epochs", "1")
    before = fingerprint(load_policy(tmp_path / "out/tuned").model)

    with monkeypatch.context() as patch, pytest.raises(BaseException):  # noqa: B017
        patch.setattr("agl_local.policy.folder.save_file", interrupt)
        agl_sft("--epochs", "2")
    assert fingerprint(load_policy(tmp_path / "out/tuned").model) == before
    (tmp_path / "out/.unfinished-tuned-0123").mkdir()  # of a run that was killed while it wrote
    (tmp_path / "out/.unfinished-other-0123").mkdir()  # of a run that may still write
    agl_sft("--epochs", "1")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [".unfinished-other-0123", "tuned"]


def test_nothing_is_written_before_training_is_done(start, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("agl_local.sft.finetune.train_sft", interrupt)
    with pytest.raises(BaseException):  # noqa: B017
        agl_sft()
    assert not (tmp_path / "out").exists()


def interrupt(*given: object, **more: object) -> None:
    raise KeyboardInterrupt


# -------------------------------------------------------------------------------------------- adapters
@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """Where fetched policies go."""
    monkeypatch.setenv("AGL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_lora_writes_an_adapter_of_which_fetch_makes_the_tuned_policy(start, tmp_path, cache) -> None:
    summary = json.loads(agl_sft("--lora", "2", "--epochs", "2", "--json")[-1])
    folder = Path(summary["policy"])
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (2, 4, str(start))
    assert summary["lora"] == {"rank": 2, "alpha": 4, "targets": "all-linear"}
    assert "'rank': 2" in (folder / "README.md").read_text()
    found = fetch(folder)
    assert found.new and not fetch(folder).new and found.path.is_relative_to(cache)
    base, tuned = load_policy(start), load_policy(found.path)
    assert fingerprint(base.model) == summary["parent_sha256"] != fingerprint(tuned.model)
    rows = chats_of(ROWS, "rows").chats
    samples = encode(tuned.tokenizer, rows, 256).samples
    assert sft_loss(tuned.model, samples, 4096) < sft_loss(base.model, samples, 4096)


def test_an_adapter_is_rounded_to_the_precision_of_the_weights_beside_it(start, tmp_path) -> None:
    (folder,) = agl_sft("--lora", "2", "--dtype", "bfloat16", "--epochs", "1")
    tensors = load_file(Path(folder) / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}


def test_an_adapter_is_trained_on_beside_the_same_weights(start, tmp_path, cache) -> None:
    first = json.loads(agl_sft("--lora", "2", "--epochs", "2", "--json", "--val", "train.jsonl")[-1])
    again = ("--lora", "2", "--epochs", "2", "--json", "--val", "train.jsonl", "--dtype", "bfloat16")
    second = json.loads(agl_sft("--policy", "out/tuned", "--output", "out/more", *again)[-1])
    # The adapter was written in float32; beside weights of bfloat16 it computes nearly what it did.
    assert second["val_losses"][0] == pytest.approx(first["val_losses"][-1], rel=0.02)
    assert second["val_losses"][-1] < second["val_losses"][0] < first["val_losses"][0]
    assert second["parent_sha256"] == first["parent_sha256"]
    config = json.loads((tmp_path / "out/more/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(start)
    earlier, more = fetch(tmp_path / "out/tuned").path, fetch(tmp_path / "out/more").path
    assert more != earlier
    # In its own place: the newest of two merges has the name.
    agl_sft("--policy", "out/tuned", "--output", "out/tuned", *again)
    newest = fetch(tmp_path / "out/tuned").path
    assert newest != earlier and fetch("start-tuned").path == newest and fetch(earlier.name).path == earlier
    with pytest.raises(UsageError, match="--lora is 3; the adapter in out/tuned has the rank 2"):
        agl_sft("--policy", "out/tuned", "--lora", "3")


def test_an_adapter_over_a_quantised_base_belongs_to_it(start, tmp_path, cache, caplog) -> None:
    line = ("--lora", "2", "--quantize", "nf4", "--epochs", "2", "--json", "--val", "train.jsonl")
    summary = json.loads(agl_sft(*line)[-1])
    plain = load_policy(start)
    assert summary["quantize"] == "nf4" and summary["parent_sha256"] == fingerprint(plain.model)
    folder = tmp_path / "out/tuned"
    assert "| parent's matrices, while training | nf4 |" in (folder / "README.md").read_text()
    # Fetched, it is the policy that was trained: sums with what four bits have kept.
    merged = load_policy(fetch(folder).path)
    samples = encode(merged.tokenizer, chats_of(ROWS, "rows").chats, 256).samples
    assert sft_loss(merged.model, samples, 4096) == pytest.approx(summary["val_losses"][-1], rel=1e-4)
    assert not caplog.messages
    again = json.loads(agl_sft("--policy", "out/tuned", "--output", "out/more", *line)[-1])
    assert again["val_losses"][0] == pytest.approx(summary["val_losses"][-1], rel=1e-4)
    assert not caplog.messages
    add_adapter(plain, folder, summary["parent_sha256"])
    assert "was trained over a base in nf4; over one that is not quantised it makes another" in caplog.text


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected a JSON object"),
        (None, "adapter_model.safetensors: there is no such file"),
    ],
)
def test_a_broken_adapter_is_named_by_its_file(
    start: Path, tmp_path: Path, cache: Path, broken: str | None, said: str
) -> None:
    (folder,) = agl_sft("--lora", "2", "--epochs", "1")
    if broken is None:
        (Path(folder) / "adapter_model.safetensors").unlink()
    else:
        (Path(folder) / "adapter_config.json").write_text(broken)
    by_name = load_plugins().policies["adapter:"].fetch
    for use in (fetch, by_name, lambda given: agl_sft("--policy", given, "--output", "o", "--lora", "2")):
        with pytest.raises(UsageError, match=f"{folder}.*{said}") as refused:
            use(folder)
        assert "AGL_CACHE" not in str(refused.value)


def test_an_adapter_does_not_join_other_weights(start, tmp_path, cache) -> None:
    (folder,) = agl_sft("--lora", "2", "--epochs", "1")
    agl_sft("--epochs", "1", "--output", "other")
    config = Path(folder) / "adapter_config.json"
    kept = json.loads(config.read_text())
    config.write_text(json.dumps({**kept, "base_model_name_or_path": str(tmp_path / "other")}))
    with pytest.raises(UsageError, match="was trained beside weights with the sha256"):
        fetch(folder)
    for change, problem in (
        ({"base_model_name_or_path": None}, "names no model"),
        ({"use_dora": True}, "use_dora is True: only False is read"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is given"),
        ({"r": 3}, "of other layers or of another rank"),
        ({"target_modules": ["nowhere"]}, "'nowhere'"),
        ({"r": None}, f"{config}: r is not given: an adapter needs r, its rank"),
        ({"lora_alpha": None}, f"{config}: lora_alpha is not given"),
        ({"lora_alpha": "much"}, f"{config}: r, lora_alpha and target_modules: Expected `float`, got `str`"),
    ):
        config.write_text(json.dumps({**kept, **change}))
        with pytest.raises(UsageError, match=problem):
            fetch(folder)


def test_an_adapter_that_is_not_finite_is_refused_and_not_kept(start, tmp_path, cache) -> None:
    (folder,) = agl_sft("--lora", "2", "--epochs", "1")
    file = Path(folder) / "adapter_model.safetensors"
    with safe_open(file, "pt") as content:
        facts = content.metadata()
    tensors = load_file(file)
    name = next(iter(tensors))
    save_file({**tensors, name: tensors[name] * math.nan}, file, metadata=facts)
    with pytest.raises(UsageError, match=f"{file}: NaN or infinite numbers stand in {name}"):
        fetch(folder)
    assert [path.name for path in (cache / "policies").iterdir()] == [".lock"]


@pytest.mark.plugins
def test_the_command_is_registered() -> None:
    assert load_plugins().commands["sft"].about == "fine-tune a policy on chats"
