"""Reflective search through gepa: evaluations are rollouts, reflections are requests to the critic."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agl_apo.candidates import stored_candidates
from agl_apo.reflective import GEPA

from .conftest import FIRST, WORDS, World

pytest.importorskip("gepa")


def reflection(body: dict[str, Any]) -> str:
    """Add the next word to the instructions that gepa shows."""
    prompt = re.search(r"```\n(.*?)\n```", body["messages"][-1]["content"], re.DOTALL)[1]
    return f"```\n{prompt} {next((word for word in WORDS if word not in prompt), 'indeed')}\n```"


SETTINGS = {"prompts": {"prompt_template": FIRST}, "max_metric_calls": 90, "gradient_batch_size": 4}


@pytest.mark.slow
async def test_gepa_finds_a_better_prompt(world: World) -> None:
    world.served.reply = reflection
    summary = await world.fit(GEPA(critic=world.critic, **SETTINGS))
    assert summary["reward_before"] == 0.0 and summary["reward_after"] == 1.0
    assert summary["spent"]["by_role"]["editor"]["calls"] == 0
    assert summary["spent"]["calls"] == len(world.model.log) + len(world.served.log)
    async with world.stored() as store:
        found = await stored_candidates(store, "search")
    assert all(one.origin.parents for one in found[1:]), "each knows the prompts it was made of"


@pytest.mark.slow
async def test_gepa_goes_on_from_the_store_alone(world: World) -> None:
    world.served.reply = reflection
    first = await world.fit(GEPA(critic=world.critic, **SETTINGS))
    made = len(world.model.log), len(world.served.log)
    again = await world.fit(GEPA(critic=world.critic, **SETTINGS), resume=True)
    assert (len(world.model.log), len(world.served.log)) == made, "not one call is made again"
    assert again["winner"] == first["winner"] and again["candidates"] == first["candidates"]


@pytest.mark.slow
async def test_texts_that_cannot_be_used_are_counted(world: World) -> None:
    world.served.reply = lambda body: "```\nno placeholder\n```"
    summary = await world.fit(GEPA(critic=world.critic, **{**SETTINGS, "max_metric_calls": 30}))
    assert summary["failures"]["reflection: placeholder-lost"] > 0
    assert summary["prompts"] == {"prompt_template": FIRST}


@pytest.mark.slow
async def test_a_budget_ends_gepa_too(world: World) -> None:
    world.served.reply = reflection
    summary = await world.fit(GEPA(critic=world.critic, budget={"calls": 45}, **SETTINGS))
    assert len(world.model.log) + len(world.served.log) <= 45
    assert "budget" in summary["stopped"] and summary["reward_after"] is not None
