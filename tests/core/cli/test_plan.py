"""``agl plan``: a table for people, JSON for programs, errors that say what to give."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from agentlightning.cli import app
from agentlightning.plan.costs import committed
from agentlightning.types import UsageError

ROOT = Path(__file__).parents[3]
LINE = ["plan", "--gpus", "64", "--model", "7b", "--turns", "20", "--tokens", "16k"]


def said(*more: str) -> str:
    line = [*LINE, *more]
    done = CliRunner().invoke(app(line), line, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_it_prints_figures_limits_and_what_binds_first() -> None:
    shown = said()
    assert "64 GPUs · Qwen2.5-7B · 2,048 rollouts in groups of 8 · 20 calls · 16,000 tokens" in shown
    for part in (
        "gateway processes",
        "KV cache a GPU",
        "idle share of GPUs",
        "Limits",
        "Binds first: ",
        "A assumption",
    ):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= 118


def test_json_has_all_of_it() -> None:
    found = json.loads(said("--json").splitlines()[-1])
    assert found["binds_first"] == found["limits"][0]
    assert {one["basis"][0] for one in found["figures"]} <= {"measured", "formula", "assumption"}
    assert found["inputs"]["gpus"] == 64 and found["assumptions"]["peak"] == 2
    assert found["costs"]["gateway_ms"]["sources"][0]["command"].startswith("python bench/gateway.py")


def test_assumptions_and_tokens_a_second_change_it() -> None:
    def step(*more: str) -> float:
        found = json.loads(said("--json", *more).splitlines()[-1])
        return next(one["value"] for one in found["figures"] if one["name"] == "step")

    assert step("--assume", "update_share=0.7") < step() < step("--tokens-per-s", "100")


def test_what_is_too_little_is_said_with_what_to_change() -> None:
    shown = said("--tokens", "64k")
    assert "→ KV cache: run at most" in shown and "nothing is short" not in shown
    assert "nothing is short" in said()


def test_costs_of_a_file(tmp_path: Path) -> None:
    told = msgspec.to_builtins(committed())
    told["step_mb"]["points"] = [[1.0, 5e5]]
    file = tmp_path / "costs.json"
    file.write_bytes(msgspec.json.encode(told))
    assert "memory of the host" in said("--costs", str(file)).split("Binds first: ")[1]


def test_sizes_of_a_runs_file() -> None:
    config = str(ROOT / "examples" / "calc_x" / "verl_gpu.yaml")
    line = ["plan", "--config", config, "--set", "backend.policy=Qwen2.5-0.5B", "--turns", "4", "--json"]
    line += ["--gpus", "2"]
    done = CliRunner().invoke(app(line), line, catch_exceptions=False)
    inputs = json.loads(done.stdout.splitlines()[-1])["inputs"]
    assert (inputs["gpus"], inputs["model"], inputs["rollouts"], inputs["group"]) == (
        2,
        "Qwen2.5-0.5B",
        256,
        8,
    )
    assert (inputs["tokens"], inputs["concurrency"], inputs["micro_tokens"]) == (4096, 256, 16384)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (["plan"], "--gpus, --turns, --tokens, --model: needed"),
        ([*LINE, "--tokens-per-s", "0"], "--tokens-per-s 0: more than 0"),
        ([*LINE, "--model", "9b"], "--model '9b'"),
        ([*LINE, "--gpus", "1", "--model", "72b"], "an engine of Qwen2.5-72B needs"),
        ([*LINE, "--costs", "none.json"], "no such file"),
    ],
)
def test_bad_input_says_what_to_give(line: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        CliRunner().invoke(app(line), line, catch_exceptions=False, standalone_mode=False)
