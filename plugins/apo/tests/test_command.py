"""``agl prompts`` shows what the store knows of a search."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer import Typer
from typer.testing import CliRunner

from agl_apo.beam import APO
from agl_apo.command import register

from .conftest import FIRST, World
from .test_beam import SMALL


@pytest.mark.slow
def test_candidates_and_their_ancestors(world_in_a_thread: World) -> None:
    world = world_in_a_thread
    summary = asyncio.run(world.fit(APO(critic=world.critic, **SMALL)))
    app = Typer()
    register(app)
    app.command("other")(lambda: None)
    place = str(world.folder / "search")
    listed = CliRunner().invoke(app, ["prompts", place, "--json"], catch_exceptions=False)
    lines = [json.loads(line) for line in listed.stdout.splitlines()]
    assert lines[0]["prompts"] == {"prompt_template": FIRST} and lines[0]["rewards"] == {
        "train": 0.0,
        "val": 0.0,
    }
    winner = next(line for line in lines if line["candidate"] == summary["winner"])
    assert winner["rewards"] == {"train": 1.0, "val": 1.0} and winner["critique"].startswith("It lacks")
    full = CliRunner().invoke(app, ["prompts", place, "--candidate", summary["winner"]])
    assert full.stdout.count("critique of its parent") == 4 and FIRST in full.stdout
    wrong = CliRunner().invoke(app, ["prompts", place, "--candidate", "rs-nothing"])
    assert "0 candidates begin with" in str(wrong.exception)
    assert "step" in CliRunner().invoke(app, ["prompts", place]).stdout


@pytest.mark.slow
@pytest.mark.plugins
def test_a_finished_search_is_verified_and_its_prompt_exported(world_in_a_thread: World) -> None:
    from agentlightning.cli import app

    world = world_in_a_thread
    asyncio.run(world.fit(APO(critic=world.critic, **SMALL)))
    found = CliRunner().invoke(app(["verify"]), ["verify", str(world.folder / "search")])
    assert found.exit_code == 0, found.output
    target = world.folder / "best.txt"
    CliRunner().invoke(
        app(["export"]), ["export", str(world.folder / "search"), str(target)], catch_exceptions=False
    )
    assert target.read_text().startswith(FIRST) and target.read_text() != FIRST
