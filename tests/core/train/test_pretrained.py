"""A pretrained policy's name in place of a folder: a plugin fetches it on first use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentlightning import LLM, PolicyFolder, Trainer
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins.manager import Plugins, build
from agentlightning.specs import PolicySpec
from agentlightning.train import configured
from agentlightning.train.config import from_fields
from agentlightning.train.configured import policies_of
from agentlightning.train.policies import fetch_pretrained, with_pretrained
from agentlightning.types.base import ConfigError


class Pretrained:
    """A plugin that has the policy `tiny`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fetched = 0

    def fetch(self) -> Path:
        self.fetched += 1
        self.folder.mkdir(exist_ok=True)
        return self.folder

    @hookimpl
    def agl_policies(self) -> list[PolicySpec]:
        return [PolicySpec("tiny", self.fetch, "a tiny one")]


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pretrained:
    monkeypatch.chdir(tmp_path)
    return Pretrained(tmp_path / "cache")


@pytest.fixture
def plugins(plugin: Pretrained, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    loaded = build([plugin], discover=False)
    monkeypatch.setattr(configured, "load_plugins", lambda: loaded)
    return loaded


def test_a_trainers_policy(plugin: Pretrained, plugins: Plugins) -> None:
    trainer = Trainer(policy="tiny", plugins=plugins)
    assert plugin.fetched == 0  # on first use
    found = with_pretrained(trainer.config.served, plugins)
    assert found.trained["policy"].path == plugin.folder and plugin.fetched == 1
    trainer.session(lambda task: 1.0)  # before it opens anything
    assert plugin.fetched == 2


def test_names_that_begin_alike(tmp_path: Path) -> None:
    asked: list[str] = []

    class Shop:
        @hookimpl
        def agl_policies(self) -> list[PolicySpec]:
            return [PolicySpec("shop:", lambda rest: asked.append(rest) or tmp_path, prefix=True)]

    plugins = build([Shop()], discover=False)
    assert fetch_pretrained("shop:a/b", plugins) == tmp_path.resolve() and asked == ["a/b"]
    assert fetch_pretrained("a/b", plugins) is None and fetch_pretrained("shop", plugins) is None


def test_named_policies(plugin: Pretrained, plugins: Plugins, tmp_path: Path) -> None:
    (tmp_path / "town").mkdir()
    judge = LLM(endpoint="http://127.0.0.1:9/v1", model="m")
    given: dict[str, Any] = {
        "wolves": PolicyFolder("tiny", options={"lr": 1.0}), "town": "town", "judge": judge,
        "old": PolicyFolder("tiny", train=False),
    }  # fmt: skip
    found = with_pretrained(Trainer(policy=given, plugins=plugins).config.served, plugins)
    assert found.trained == {
        "wolves": PolicyFolder(plugin.folder, options={"lr": 1.0}, name="wolves"),
        "town": PolicyFolder("town", name="town"),
    }
    assert found.frozen == {"judge": judge, "old": PolicyFolder(plugin.folder, False, name="old")}


def test_a_folder_of_that_name_comes_first(plugin: Pretrained, plugins: Plugins, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    config = from_fields({"policy": "tiny"})
    assert with_pretrained(config.served, plugins) is config.served
    assert policies_of(config).trained["policy"].path == tmp_path / "tiny"
    assert plugin.fetched == 0


def test_a_files_policy(plugin: Pretrained, plugins: Plugins) -> None:
    assert policies_of(from_fields({"policy": "tiny"})).trained["policy"].path == plugin.folder
    named = from_fields({"policy": {"wolves": {"path": "tiny", "train": False}}})
    assert policies_of(named).frozen == {"wolves": PolicyFolder(plugin.folder, train=False, name="wolves")}
    with pytest.raises(ConfigError, match=r"backend.policy: teeny: there is no such folder"):
        policies_of(from_fields({"policy": "teeny"}))
