"""What scripts/environments.toml says of its own pins."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import Version

TEXT = (Path(__file__).parents[2] / "scripts" / "environments.toml").read_text(encoding="utf-8")
WITH_OPENAI_3 = "1.108"
"""The first litellm that takes openai 3."""


def pins() -> dict[str, dict[str, Version]]:
    """Environment → distribution → its pinned version."""
    tables = {name: table["requires"] for name, table in tomllib.loads(TEXT).items()}
    split = {name: [re.split(r"(?:\[.*\])?==", pin) for pin in pinned] for name, pinned in tables.items()}
    return {name: {one: Version(version) for one, version in pinned} for name, pinned in split.items()}


def test_litellm_keeps_openai_below_3_up_to_the_version_that_is_said() -> None:
    both = {name: (one["litellm"], one["openai"]) for name, one in pins().items() if "litellm" in one}
    takes = {name for name, (litellm, _) in both.items() if litellm >= Version(WITH_OPENAI_3)}
    assert {name for name, (_, openai) in both.items() if openai.major >= 3} == takes
    assert takes and takes != {*both}


def test_no_comment_says_it_of_every_litellm() -> None:
    comments = re.findall(r"(?:^#.*\n)+", TEXT, re.M)
    claims = [one for one in comments if "litellm" in one and "openai below 3" in one]
    assert claims
    assert [one for one in claims if WITH_OPENAI_3 not in one] == []
