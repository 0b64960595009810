"""A tiny policy from a few dozen chats: tokenizer, lessons, checks, and a run that trains it."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

import agl_local.plugin
from agentlightning.cli import app
from agentlightning.plugins import manager
from agentlightning.types import UsageError
from agl_local.fresh.look import check, info
from agl_local.fresh.tokenizer import fixed_lines, tokenizer_for
from agl_local.policy.folder import load_policy
from agl_local.sft.chats import chats_of

SYSTEM = "Add the numbers with the tool."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": {"sum": {"type": "string"}}},
        },
    }
]


def chats(count: int) -> list[dict[str, Any]]:
    """Additions of digits: a call of the tool, then the answer."""
    choose, rows = random.Random(1), []
    for _ in range(count):
        a, b = choose.randrange(10), choose.randrange(10)
        call = {"name": "add", "arguments": json.dumps({"sum": f"{a} + {b}"})}
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"What is {a} plus {b}?"},
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": call}]},
            {"role": "tool", "tool_call_id": "c", "content": str(a + b)},
            {"role": "assistant", "content": f"It is {a + b}."},
        ]
        rows.append({"messages": messages, "tools": TOOLS})
    return rows


def agl(monkeypatch: pytest.MonkeyPatch, *line: object) -> Result:
    loaded = manager.build([agl_local.plugin], discover=False)
    monkeypatch.setattr("agentlightning.cli.load_plugins", lambda: loaded)
    words = [str(word) for word in line]
    return CliRunner().invoke(app(words), words)


def written(tmp_path: Path, count: int) -> Path:
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in chats(count)))
    return file


def test_fixed_lines_are_one_token_and_any_text_comes_back() -> None:
    data = chats_of(chats(20), "chats")
    tokenizer = tokenizer_for(data.chats, 512)
    first = data.chats[0]
    prompt = tokenizer.apply(first.messages[:2], first.tools)
    assert len(prompt) < 25
    assert len(tokenizer.encode(f"{SYSTEM}\n")) == 1
    assert len(tokenizer.encode('{"name": "add", "arguments": {"sum": "')) == 1
    for text in ("Ünïcode 漢字 🙂\n\t1234", SYSTEM, "something else"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer_for(data.chats, 512).backend.to_str() == tokenizer.backend.to_str()


def test_a_line_is_fixed_if_half_of_the_chats_have_it() -> None:
    assert fixed_lines(
        ["always\nsometimes\n", "always\nsometimes\n", "always\nrarely ever\n", "always\n"]
    ) == [
        "sometimes\n",
        "always\n",
    ]


@pytest.mark.slow
def test_it_learns_its_chats_and_passes_its_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = written(tmp_path, 24), tmp_path / "policy"
    small = ("--chats", file, "--epochs", 40, "--hidden", 64)
    made = agl(monkeypatch, "policy", "new", folder, *small, "--json")
    assert made.exit_code == 0, made.output
    summary = json.loads(made.stdout.splitlines()[-1])
    assert summary["loss"] < summary["loss_first"] / 4 and summary["too_long"] == 0
    assert "agl policy new, random weights of seed 0" in (folder / "README.md").read_text()
    checked = agl(monkeypatch, "policy", "check", folder, "--chats", file, "--json")
    found = json.loads(checked.stdout)
    assert checked.exit_code == 0 and found["ok"] and found["chats"] == 24 and found["messages"] == 48
    assert found["loss"] < summary["loss_first"] and 0.0 <= found["word_for_word"] <= 1.0
    facts = json.loads(agl(monkeypatch, "policy", "info", folder, "--json").stdout)
    assert (facts["layers"], facts["hidden"], facts["tools"]) == (2, 64, True)
    assert facts["vocabulary"] == summary["vocabulary"] == load_policy(folder).tokenizer.vocab_size
    again = tmp_path / "again"
    agl(monkeypatch, "policy", "new", again, *small)
    assert info(again)["parameters_sha256"] == facts["parameters_sha256"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "4 chats are too few"),
        (("--hidden", "100"), "a multiple of 64"),
    ],
)
def test_what_cannot_be_made_is_said(
    options: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, 8 if options else 4)
    said = agl(monkeypatch, "policy", "new", tmp_path / "policy", "--chats", file, *options)
    assert isinstance(said.exception, UsageError) and message in str(said.exception)
    assert not (tmp_path / "policy").exists()


def test_a_policy_that_a_run_cannot_use_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that drops what was said before, and knows no tools."""
    bundled = agl_local.plugin.tiny_policy()
    found = check(bundled)
    assert found["ok"] and found["warnings"] == []
    assert found["checks"] == dict.fromkeys(("loads", "finite", "text", "ends", "history", "tools"))
    assert len(found["round_trips"]) == 11 and not any(found["round_trips"].values())
    folder = tmp_path / "policy"
    folder.mkdir()
    for file in bundled.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text("{{ messages[-1].content }}<|im_end|>")
    said = agl(monkeypatch, "policy", "check", folder)
    assert said.exit_code == 1
    assert "✗ history: the template leaves out what was said earlier" in said.stdout
    assert "✗ tools: the template leaves calls out of the conversation" in said.stdout
    nowhere = agl(monkeypatch, "policy", "info", tmp_path / "nowhere")
    assert isinstance(nowhere.exception, UsageError) and "no such folder" in str(nowhere.exception)


@pytest.mark.parametrize(
    ("file", "change", "match"),
    [
        ("config.json", None, "config.json: not valid JSON"),
        ("tokenizer.json", {}, "tokenizer.json: not a tokenizer"),
        ("config.json", {"num_attention_heads": 3}, "config.json: num_heads (3) must be a multiple"),
        ("config.json", {"hidden_size": "wide"}, "config.json: hidden_size = 'wide': a whole number"),
        ("config.json", {"rope_theta": -1}, "config.json: rope_theta must be a positive number, got -1.0"),
        ("config.json", {"rms_norm_eps": 0}, "config.json: rms_eps must be a positive number, got 0.0"),
        ("config.json", {"vocab_size": 100}, "vocab_size of config.json is 100"),
        ("config.json", {"model_type": "qwen22"}, "config.json: transformers does not load"),
        ("config.json", {"model_type": None}, "config.json: transformers does not load"),
    ],
)
def test_a_folder_that_cannot_be_loaded_fails_that_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, change: dict[str, Any] | None, match: str
) -> None:
    """And ``agl sft`` refuses it by the same words."""
    if change and "model_type" in change:
        pytest.importorskip("transformers")
    folder = Path(shutil.copytree(agl_local.plugin.tiny_policy(), tmp_path / "policy"))
    before = json.loads((folder / file).read_text()) if change else {}
    (folder / file).write_text("{oops" if change is None else json.dumps({**before, **change}))
    said = agl(monkeypatch, "policy", "check", folder)
    assert said.exit_code == 1 and said.stdout.startswith("✗ loads: ") and match in said.stdout
    assert str(folder) in said.stdout and len(said.stdout.splitlines()) == 1
    chats = tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({"messages": [{"role": "assistant", "content": "Hello"}]}))
    refused = agl(monkeypatch, "sft", "--policy", folder, "--data", chats, "-o", tmp_path / "out")
    assert isinstance(refused.exception, UsageError) and match in str(refused.exception)


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: float
) -> None:
    folder = Path(shutil.copytree(agl_local.plugin.tiny_policy(), tmp_path / "policy"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] = number
    save_file(tensors, folder / "model.safetensors")
    said = agl(monkeypatch, "policy", "check", folder)
    assert said.exit_code == 1 and "✓ loads" in said.stdout
    assert "✗ finite: NaN or infinite numbers stand in model.norm.weight\n" in said.stdout


def with_template(tmp_path: Path, name: str) -> Path:
    """The bundled policy with a published template."""
    folder = tmp_path / name
    folder.mkdir()
    for file in agl_local.plugin.tiny_policy().iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    template = Path(__file__).parents[1] / "templates" / f"{name}.jinja"
    (folder / "chat_template.jinja").write_bytes(template.read_bytes())
    return folder


def test_calls_that_cannot_be_read_back_fail_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = agl(monkeypatch, "policy", "check", with_template(tmp_path, "phi3"))
    assert said.exit_code == 1 and "✗ tools: the template leaves calls out" in said.stdout


def test_a_prompt_that_does_not_extend_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3.5 drops the thinking of turns before the last question."""
    said = agl(monkeypatch, "policy", "check", with_template(tmp_path, "qwen3_5_think"))
    assert said.exit_code == 0 and "✓ tools" in said.stdout
    assert "! prefix: turn 4 does not extend turn 3" in said.stdout and "rows of their own" in said.stdout


def test_check_and_info_take_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agl(monkeypatch, "policy", "check", "tiny").exit_code == 0
    assert json.loads(agl(monkeypatch, "policy", "info", "tiny", "--json").stdout)["calls"] == "json"
    unknown = agl(monkeypatch, "policy", "info", "tinny")
    assert isinstance(unknown.exception, UsageError) and "Did you mean 'tiny'" in str(unknown.exception)
