"""The umbrella: a name that the index has free, an extra for each distribution."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = sorted(
    path.parent for room in ("adapters", "plugins") for path in ROOT.glob(f"{room}/*/pyproject.toml")
)


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return found


EXTRAS: dict[str, list[str]] = project(ROOT)["optional-dependencies"]


def named(requirement: str) -> str:
    return re.split(r"[\[=]", requirement)[0]


@pytest.mark.parametrize("folder", PARTS, ids=lambda folder: folder.name)
def test_each_adapter_and_plugin_has_an_extra_and_is_in_all(folder: Path) -> None:
    distribution = project(folder)["name"]
    assert [named(one) for one in EXTRAS[folder.name]] == [distribution]
    assert distribution in map(named, EXTRAS["all"])


def test_each_tracker_has_an_extra() -> None:
    names = {*project(ROOT / "plugins" / "trackers")["optional-dependencies"]} - {"all"}
    assert all(EXTRAS[name] == [f"agl-trackers[{name}]==0.1.0"] for name in names)


def test_it_has_a_name_of_its_own_and_brings_core() -> None:
    umbrella = project(ROOT)
    assert (umbrella["name"], umbrella["dependencies"]) == ("agl-suite", ["agl-core==0.1.0"])
