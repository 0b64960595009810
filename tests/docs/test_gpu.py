"""The pages about GPUs and memory: tables are those that the formulas give, and the profiles are there."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from agl_local.network.config import ModelConfig
from agl_local.network.model import CausalLM
from agl_local.network.shape import NetworkShape

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gpu.md"
MEMORY = ROOT / "docs" / "contributing" / "memory.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """scripts/model_memory.py."""
    spec = importlib.util.spec_from_file_location("model_memory", ROOT / "scripts" / "model_memory.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def network(shape: NetworkShape) -> ModelConfig:
    return ModelConfig(**asdict(shape), arch="qwen2" if shape.qkv_bias else "llama")


def test_the_tables_are_fresh(script: ModuleType) -> None:
    assert script.main(["--check"]) == 0, "run python scripts/model_memory.py"
    assert script.tables(script.TABLED) in MEMORY.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("SmolLM2-135M", 134_515_008),
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen2.5-1.5B", 1_543_714_304),
        ("Qwen2.5-3B", 3_085_938_688),
        ("Qwen2.5-7B", 7_615_616_512),
    ],
)
def test_the_models_are_the_published_ones(name: str, parameters: int, script: ModuleType) -> None:
    """Numbers of parameters as the networks have them, and as their model cards round them."""
    with torch.device("meta"):
        model = CausalLM(network(script.TABLED[name]))
    assert sum(p.numel() for p in model.parameters()) == script.parameter_count(script.TABLED[name])
    assert script.parameter_count(script.TABLED[name]) == parameters


def test_the_row_of_135_million_on_a_laptop(script: ModuleType) -> None:
    """Weights and moments as torch holds them, and the sum of the row."""
    config = script.TABLED["SmolLM2-135M"]
    states, kept, less, served, together, checkpointed = script.full(4, 4)(config)
    with torch.device("meta"):
        model = CausalLM(network(config))
    assert states == 4 * sum(p.numel() * p.element_size() for p in model.parameters())
    assert served == 4 * 134_515_008 + 64 * 1024 * 4 * 2 * 30 * 3 * 64
    assert (together, checkpointed) == (states + kept + served, states + less + served)
    assert f"| SmolLM2-135M | {states / 1e9:.1f} | {kept / 1e9:.1f} |" in MEMORY.read_text(encoding="utf-8")


def test_a_folder_gets_tables_of_its_own(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "examples" / "calc_x" / "policy"
    assert script.main([str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "| policy | 0.5 |" in printed and printed.count("**") == 2 * len(script.SETTINGS)
    assert "| 0.0 |" not in printed and "| policy | 0.0033 |" in printed


@pytest.mark.parametrize(("content", "said"), [(None, "there is no such file"), ("{oops", "not valid JSON")])
def test_a_folder_that_is_no_models_is_refused_in_one_line(
    tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str], content: str | None, said: str
) -> None:
    if content:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(SystemExit) as ended:
        script.main([str(tmp_path)])
    printed = capsys.readouterr().err
    assert ended.value.code == 2 and len(printed.splitlines()) == 1
    assert f"{tmp_path / 'config.json'}: {said}" in printed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "gemma3_text"}, "model_type 'gemma3_text' is not one of"),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 64}}, "model_type 'gemma3' is not one of"),
        ({"model_type": "granitemoehybrid"}, "model_type 'granitemoehybrid' is not one of"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "without quantize and activation_checkpointing"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config: the weights are quantised"),
        ({"num_attention_heads": 0}, "num_heads must be at least 1"),
    ],
)
def test_a_model_that_the_formulas_do_not_fit_is_refused(
    changes: dict[str, object],
    said: str,
    tmp_path: Path,
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By the driver's own reading of config.json."""
    config = json.loads((ROOT / "examples/quickstart/policy/config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(SystemExit) as ended:
        script.main([str(tmp_path)])
    printed = capsys.readouterr()
    assert ended.value.code == 2 and not printed.out and len(printed.err.splitlines()) == 1
    assert f"{tmp_path}" in printed.err and said in printed.err


def test_the_short_tables_are_those_of_the_formulas(script: ModuleType) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, shape in script.TABLED.items():
        needed = [script.run_bytes(shape, script.planned(base, True)) / 1e9 for base in script.BASES]
        assert f"| {name} | {' | '.join(f'{gb:.1f}' for gb in needed)} |\n" in page
        assert f"| {needed[0]:.1f} |\n" in script.tables({name: shape}).partition("**One laptop")[0]
    cards = script.cards()
    assert [len(fits) for fits in cards.values()] == [len(script.BASES)] * len(script.CARDS)
    for card, fits in cards.items():
        assert f"| {card} | {' | '.join(fits.values())} |\n" in page


def test_the_page_on_cpus_has_the_figures_of_the_formulas_and_of_the_runs(script: ModuleType) -> None:
    page = (ROOT / "docs" / "cpu.md").read_text(encoding="utf-8")
    laptop = script.tables(script.TABLED).partition("**One laptop")[2].partition("**One GPU")[0]
    for model, all_, less in re.findall(r"^\| (\S+) \|.* ([\d.]+) \| ([\d.]+) \|$", laptop, re.M)[:3]:
        assert f"| {model} | {all_} | {less} |" in page
    results = (ROOT / "docs" / "contributing" / "results.md").read_text(encoding="utf-8")
    assert "trained in 153 to 165 s (215 to 219 s with both evaluations). At most 3.6 GB" in results.replace(
        "\n", " "
    )
    rows = re.findall(r"^\| [123] \|.* (\d+) s \| (\d+) s \|$", results, re.M)
    trained, whole = (sorted(int(row[i]) for row in rows) for i in (0, 1))
    assert f"| {trained[0]} to {trained[-1]} s | {whole[0]} to {whole[-1]} s |" in page
    assert "| 153 to 165 s | 215 to 219 s |" in page and "at most 3.6 GB" in page


@pytest.mark.parametrize(("profile", "written"), [("calc_x", "14.6"), ("router", "13.6")])
def test_the_profiles_of_one_gpu_fit_24_gb(profile: str, written: str, script: ModuleType) -> None:
    """By the formulas, with a gigabyte for the runtime; page and file name the same figure."""
    file = ROOT / "examples" / profile / "gpu.yaml"
    text = file.read_text(encoding="utf-8")
    needed = script.of_profile(yaml.safe_load(text)["backend"]["options"], script.TABLED["Qwen2.5-1.5B"])
    assert f"{needed / 1e9:.1f}" == written and needed + 1e9 < 24e9
    assert f"{written} GB by the formulas" in text
    assert re.search(rf"gpu\.yaml` \| `local`, LoRA: {written} GB", PAGE.read_text(encoding="utf-8"))


def test_what_is_said_to_fit_a_card_fits_it(script: ModuleType) -> None:
    """By the formulas, with a gigabyte for the runtime; the lines of a row are its options."""
    common = {"dtype": "bfloat16", "activation_checkpointing": True, "micro_batch_tokens": 4096}
    row = r"^\| (\d+) GB \| \**([\d.]+) billion, (all weights|LoRA)\**.*?\|(.*)\| ([\d.]+) \|$"
    rows = re.findall(row, PAGE.read_text(encoding="utf-8"), re.M)
    assert len(rows) == 6
    for card, size, trained, lines, written in rows:
        given = {k: v for line in re.findall(r"`(.+?)`", lines) for k, v in yaml.safe_load(line).items()}
        options = {**common, "max_num_seqs": 64, "max_len": 1024, **given}
        needed = script.of_profile(options, script.MODELS[f"Qwen2.5-{size}B"])
        assert f"{needed / 1e9:.1f}" == written and needed + 1e9 < int(card) * 1e9
        assert ("lora" in given) == (trained == "LoRA")


def test_the_profile_of_24_gb_is_a_row_of_the_table(script: ModuleType) -> None:
    file = ROOT / "examples" / "calc_x" / "gpu_24gb.yaml"
    text = file.read_text(encoding="utf-8")
    needed = script.of_profile(yaml.safe_load(text)["backend"]["options"], script.MODELS["Qwen2.5-7B"])
    assert f"{needed / 1e9:.1f}" == "21.3" and "21.3 GB by the formulas" in text
    assert "over 4 bits: 21.3 GB by formula" in PAGE.read_text(encoding="utf-8")


def test_a_further_adapter_adds_what_the_page_says(script: ModuleType) -> None:
    """Over the row of 7 billion: its states and its part of the engine; its cache; and two on one card."""
    profile = yaml.safe_load((ROOT / "examples" / "calc_x" / "gpu_24gb.yaml").read_text(encoding="utf-8"))
    shape, options = script.MODELS["Qwen2.5-7B"], profile["backend"]["options"]
    one, two = (script.of_profile(options, shape, policies) for policies in (1, 2))
    cache = script.HALF * options["max_num_seqs"] * options["max_len"] * script.cached_numbers(shape)
    small = (script.STATES + script.HALF) * script.lora_count(shape, options["lora"]["rank"])
    assert two - one == small + cache
    halved = script.of_profile({**options, "max_num_seqs": 16}, shape, 2)
    page = PAGE.read_text(encoding="utf-8")
    assert halved + 1e9 < 24e9 and f"`max_num_seqs: 16` each take {halved / 1e9:.1f} GB" in page
    assert f"adds {small / 1e9:.1f} GB" in page and f"cache of its own, {cache / 1e9:.1f} GB" in page


def test_the_profiles_that_it_names_are_there() -> None:
    rows = re.findall(r"^\| `(examples/\S+\.yaml)` \| `(\w+)`", PAGE.read_text(encoding="utf-8"), re.M)
    assert {name for name, _ in rows} == {
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("examples/*/*gpu*.yaml")
    }
    for name, driver in rows:
        profile = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
        assert profile["backend"]["driver"] == driver
        assert profile["backend"]["options"]["device"] == "cuda"
