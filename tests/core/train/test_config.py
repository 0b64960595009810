"""Fields of a run: one name each, keywords of ``Trainer``, names of older versions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import agentlightning as agl
from agentlightning.gateway.settings import GatewaySection
from agentlightning.train.config import RunConfig, fields, from_fields
from agentlightning.train.run_file import load_config
from agentlightning.types.base import ConfigError

MINIMAL = "agent: {target: a}\nbackend: {policy: p}\n"


def test_no_name_stands_twice() -> None:
    model, sections, *_ = fields()
    names = [*sections, *(name for section in sections.values() for name in section.model_fields)]
    names += [name for name in model.model_fields if name not in sections]
    assert [name for name, n in Counter(names).items() if n > 1] == []


def test_fields_come_back_as_they_were_given() -> None:
    given: dict[str, Any] = {
        "steps": 3,
        "concurrency": 2,
        "max_requests": 7,
        "output": "there",
        "policy": "p",
    }
    given |= {"failure": {"timeout": -1.0}, "select": ["a"], "trackers": "files"}
    config = from_fields(given)
    assert (config.training.steps, config.agent.concurrency, config.gateway.max_requests) == (3, 2, 7)
    assert config.training.failure["timeout"].reward == -1.0 and config.trackers == ["files"]
    assert agl.Trainer.from_config(config).config is config and from_fields({}, config) == config
    changed = from_fields({"steps": 4}, config)
    assert (changed.training.steps, changed.gateway.max_requests, config.training.steps) == (4, 7, 3)


def test_a_section_may_be_given_whole() -> None:
    gateway = from_fields({"gateway": {"max_requests": 3}, "attempt_bytes": 9}).gateway
    assert isinstance(gateway, GatewaySection) and (gateway.max_requests, gateway.attempt_bytes) == (3, 9)


def test_none_means_the_default_where_it_is_no_value() -> None:
    config = from_fields({"policies": None, "options": None, "failure": None, "timeout_seconds": None})
    assert config.agent.policies == {} and config.backend.options == {}
    assert config.training.failure == RunConfig().training.failure and config.agent.timeout_seconds is None


def test_a_trainer_has_a_configuration_and_refuses_what_would_change_nothing(tmp_path: Path) -> None:
    trainer = agl.Trainer(steps=3, output=tmp_path)
    trainer.config = from_fields({"run": "r", "steps": 4}, trainer.config)
    assert (trainer.config.training.steps, trainer.config.run, trainer.config.output) == (4, "r", tmp_path)
    with pytest.raises(AttributeError, match="no attribute 'steps': its fields stand in"):
        trainer.steps = 5  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'steps'"):
        _ = trainer.steps  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"stepz": 1}, TypeError, r"Trainer has no field 'stepz'. Did you mean 'steps'\?"),
        ({"steps": -1}, ConfigError, "Trainer: steps: Input should be greater than or equal to 0"),
        ({"isolation": "thread"}, ConfigError, "Trainer: isolation: Input should be 'inline' or 'process'"),
        ({"failure": {"boom": 1}}, ConfigError, "Trainer: failure: unknown kind 'boom'; use one of"),
        ({"select": "re:("}, ConfigError, r"Trainer: select: '\(' is not a regular expression"),
        ({"policies": {"a": "b"}}, ConfigError, "Trainer: policies: 'a' has the unknown policy 'b'"),
        ({"gateway": {"max_request": 1}}, ConfigError, "Trainer: max_request: .*Did you mean 'max_requests'"),
        ({"listen": "0.0.0.0"}, agl.UsageError, "AGL_SECRET"),
    ],
)
def test_bad_values_name_the_field(given: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        agl.Trainer(**given)


def test_a_file_holds_names_and_no_objects(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(MINIMAL + "training: {algorithm: 3}\nstore: [1]")
    with pytest.raises(ConfigError, match=r"(?s)training\.algorithm: give a text, not 3.*store: give a text"):
        load_config(tmp_path / "run.yaml")
