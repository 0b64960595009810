"""Configuration: every error names the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.config import ConfigError, DataSection, load_config, load_data, resolve

GOOD = """
agent: {target: "json:dumps", name: demo}
training: {algorithm: grpo, steps: 3, recipe: {group_size: 4}}
environment:
  train: {file: tasks.jsonl}
backend: {policy: policy, options: {lr: 1.0e-4}}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


def test_reads_types_and_relative_paths(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD), {"training.steps": 5, "backend.driver": "local"})
    assert config.training.steps == 5 and config.training.recipe == {"group_size": 4}
    assert config.path("policy") == tmp_path.resolve() / "policy"
    assert config.backend.options == {"lr": 1e-4}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "agent: {target: a}\nbackend: {policy: p}\ntraining: {steps: -1}",
            r"run\.yaml: training\.steps: .*greater than or equal to 0",
        ),
        (
            "agent: {target: a}\nbackend: {policy: p}\ntraining: {step: 1}",
            r"run\.yaml: training\.step: .*not permitted",
        ),
        ("agent: {target: a}", r"run\.yaml: backend: Field required"),
        ("agent: [", r"run\.yaml: not valid YAML"),
        ("- 1", r"must hold sections"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        load_config(write(tmp_path, text))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_config(tmp_path / "none.yaml")


def test_override_through_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'steps' is a value"):
        load_config(write(tmp_path, GOOD), {"training.steps.x": 1})


def test_resolve() -> None:
    assert resolve("json:dumps", "k")({}) == "{}"
    with pytest.raises(ConfigError, match=r"k: .*module:object"):
        resolve("json", "k")
    with pytest.raises(ConfigError, match="cannot import 'no_such"):
        resolve("no_such_module_xyz:f", "k")
    with pytest.raises(ConfigError, match="has no 'nothing'"):
        resolve("json:nothing", "k")


def test_data(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n\n{"id": 2}\n')
    assert load_data(config.environment.train, config, "environment.train") == [{"id": 1}, {"id": 2}]
    assert load_data(None, config, "x") == []
    (tmp_path / "tasks.jsonl").write_text('{"id": 1}\n{"id": \n')
    with pytest.raises(ConfigError, match=r"tasks\.jsonl:2: not valid JSON"):
        load_data(config.environment.train, config, "environment.train")
    with pytest.raises(ConfigError, match="either file or target"):
        load_data(DataSection(), config, "environment.val")
    with pytest.raises(ConfigError, match="no file"):
        load_data(DataSection(file="gone.jsonl"), config, "environment.val")
