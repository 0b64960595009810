"""Configuration: every error names the file and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentlightning.train.configured import import_target, load_data
from agentlightning.train.run_file import load_config, read_yaml
from agentlightning.types import UsageError
from agentlightning.types.base import ConfigError
from agentlightning.types.sections import DataSection

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
    ("text", "number"),
    [("1e-4", 1e-4), ("1E5", 1e5), ("-2e+3", -2e3), (".5e1", 5.0), ("1.e-2", 1e-2), ("1.5e-3", 1.5e-3)],
)
def test_numbers_are_those_of_json(text: str, number: float, tmp_path: Path) -> None:
    lines = f"agent: {{target: a}}\nbackend: {{policy: p, options: {{lr: {text}, name: '1e-4'}}}}"
    read = load_config(write(tmp_path, f"{lines}\ntraining: {{recipe: {{entropy: {text}}}}}"))
    assert read.backend.options == {"lr": number, "name": "1e-4"}
    assert read.training.recipe == {"entropy": number}
    assert type(read.backend.options["lr"]) is float
    assert read_yaml(text) == number


@pytest.mark.parametrize("text", ["1e", "e4", "1e-4x", "v1e4", "0x1e4", "1.2.3e4", "2e-"])
def test_words_and_other_numbers_stay_what_they_are(text: str) -> None:
    assert read_yaml(text) == (0x1E4 if text == "0x1e4" else text)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "agent: {target: a}\nbackend: {policy: p}\ntraining: {steps: -1}",
            r"run\.yaml: training\.steps: .*greater than or equal to 0",
        ),
        (
            "agent: {target: a}\nbackend: {policy: p}\ntraining: {step: 1}",
            r"run\.yaml: training\.step: there is no such key",
        ),
        ("agent: {target: a}", r"run\.yaml: backend: Field required"),
        ("agent: [", r"run\.yaml: not valid YAML"),
        (
            "agent: {target: a}\nbackend:\n  policy:\n    w: {path: p}\n    w: {path: q}",
            r"run\.yaml: not valid YAML: 'w' is given twice\n.*line 5, column 5",
        ),
        ("- 1", r"must hold sections"),
        (
            'agent: {target: a, select: "re:("}\nbackend: {policy: p}',
            r"run\.yaml: agent\.select: .*'\(' is not a regular expression: ",
        ),
        (
            'agent: {target: a, select: [b, "re:("]}\nbackend: {policy: p}',
            r"run\.yaml: agent\.select: .*'\(' is not a regular expression: ",
        ),
        ("agent: {target: a, select: []}\nbackend: {policy: p}", r"run\.yaml: agent\.select: .*empty list"),
        *(
            (
                f"agent: {{target: a}}\nbackend: {{policy: {{{name}: {{pth: p}}}}}}",
                rf"run\.yaml: backend\.policy\.{name}\.pth: .*Did you mean 'path'\?",
            )
            for name in ("wolves", "options", "model", "policies")
        ),
        (
            "agent: {target: a}\nbackend: {policy: {w: {path: ''}}}",
            r"run\.yaml: backend\.policy\.w\.path: .*at least 1 character",
        ),
        ("agent: {target: a, concurrency: -1}\nbackend: {policy: p}", r"agent\.concurrency: .*or equal to 0"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        load_config(write(tmp_path, text))


def test_a_key_may_override_a_merged_one() -> None:
    text = "base: &base {path: p, train: true}\nother: {<<: *base, path: q}\nthird: {<<: [*base], train: no}"
    assert read_yaml(text)["other"] == {"path": "q", "train": True}
    assert read_yaml(text)["third"] == {"path": "p", "train": False}


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_config(tmp_path / "none.yaml")


def test_a_folder_or_bytes_instead_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path)
    (tmp_path / "run.yaml").write_bytes(b"agent: \xff\xfe")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_config(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    ("given", "place"),
    [
        (None, None),
        ("runs/all.sqlite", "{folder}/runs/all.sqlite"),
        ("/data/s.sqlite", "/data/s.sqlite"),
        ("http://localhost:4747", "http://localhost:4747"),
        ("sqlite:///s.sqlite", "sqlite:///s.sqlite"),
        (":memory:", ":memory:"),
    ],
)
def test_the_store_lies_relative_to_the_file(tmp_path: Path, given: str | None, place: str | None) -> None:
    config = load_config(write(tmp_path, GOOD), {"store": given})
    assert config.store_location() == (place and place.format(folder=tmp_path.resolve()))


def test_override_through_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'steps' is a value"):
        load_config(write(tmp_path, GOOD), {"training.steps.x": 1})


def test_resolve() -> None:
    assert import_target("json:dumps", "k")({}) == "{}"
    with pytest.raises(ConfigError, match=r"k: .*module:object"):
        import_target("json", "k")
    with pytest.raises(ConfigError, match="cannot import 'no_such"):
        import_target("no_such_module_xyz:f", "k")
    with pytest.raises(ConfigError, match="has no 'nothing'"):
        import_target("json:nothing", "k")


LOADERS = """
import datetime
def good(n: int, *, seed=0): return ({"q": i} for i in range(n))
def raises(): raise KeyError("column 'q'")
def inner(): return int("x", **{"wrong": 1})
def nothing(): pass
def text(): return "abc"
def dates(): return [{"q": 1}, {"when": datetime.datetime(2020, 1, 1)}]
table = [1, 2]
"""


def test_data_from_a_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loaders_of_test_config.py").write_text(LOADERS)
    (tmp_path / "broken_of_test_config.py").write_text("x = {}\ny = x['gone']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = load_config(write(tmp_path, GOOD))

    def load(target: str, **args: object) -> list[object]:
        section = DataSection(target=f"loaders_of_test_config:{target}", args=args)
        return load_data(section, config, "environment.val")

    assert load("good", n=2) == [{"q": 0}, {"q": 1}]
    with pytest.raises(
        ConfigError, match=r"environment\.val\.args: missing .*'n'; .*good takes \(n: int, \*"
    ):
        load("good")
    with pytest.raises(ConfigError, match=r"environment\.val\.args: got an unexpected .*'m'; .*takes \(n"):
        load("good", n=1, m=2)
    with pytest.raises(
        ConfigError, match=r"val\.target: .*:raises raised KeyError: .*column 'q'.*config\.py:4"
    ):
        load("raises")
    with pytest.raises(ConfigError, match=r"val\.target: .*:inner raised TypeError"):
        load("inner")
    with pytest.raises(ConfigError, match="returned a NoneType, not a list"):
        load("nothing")
    with pytest.raises(ConfigError, match="returned a str, not a list"):
        load("text")
    with pytest.raises(ConfigError, match="is a list, not a function"):
        load("table")
    with pytest.raises(UsageError, match=r"environment\.val: task 1 is a datetime \(at \.when\)"):
        load("dates")
    with pytest.raises(
        ConfigError, match=r"importing 'broken_of.*' raised KeyError: 'gone' \(.*config\.py:2\)"
    ):
        import_target("broken_of_test_config:x", "agent.target")


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
