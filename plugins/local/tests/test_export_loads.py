"""What ``agl export`` writes is loaded by transformers, and means the same there.

``make test-export`` does the same with a real vLLM.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from agentlightning.cli import app
from agl_local.policy.folder import load_policy

POLICY = Path(__file__).parents[3] / "examples" / "quickstart" / "policy"
MESSAGES = [
    {"role": "system", "content": "Use the calculator."},
    {"role": "user", "content": "What is 2 plus 3?"},
]


def test_transformers_loads_an_export(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    run = tmp_path / "mine"
    shutil.copytree(POLICY, run / "policy")
    (run / "store.sqlite").touch()
    (run / "run.json").write_text(json.dumps({"policy": "models/start", "steps": 3}))
    said = CliRunner().invoke(app(["export"]), ["export", str(run), str(tmp_path / "out"), "--json"])
    assert said.exit_code == 0 and json.loads(said.output)["run"] == "mine"
    assert "| started from | models/start |" in (tmp_path / "out" / "README.md").read_text()
    ours = load_policy(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ids = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ids == ours.tokenizer.apply(MESSAGES, None)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    with torch.no_grad():
        gap = (theirs(torch.tensor([ids])).logits - ours.model(torch.tensor([ids]))).abs().max().item()
    assert gap < 1e-4
