"""Views of the examples' rollouts in ``agl dashboard``: a recorded game, a question's way through a run, what
was looked up, a talk of a service desk, and a text game turn by turn.

An example draws its own: the copy that Python finds (``PYTHONPATH=examples``), else the files that come with
this package. They are imported when a view is opened.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from agentlightning.capture.emit import BODY
from agentlightning.types import Rollout, UsageError
from agl_audit.run import OpenRun
from agl_dashboard.hookspecs import RolloutViewSpec
from agl_examples.catalogue import files_folder


def views() -> list[RolloutViewSpec]:
    """Return them."""
    return [
        RolloutViewSpec("werewolf", "Replay", recorded_game, replay),
        RolloutViewSpec("spider", "Journey", trained_question, journey),
        RolloutViewSpec("search", "Look-ups", searched_question, look_ups),
        RolloutViewSpec("desk", "Talk", served_customer, talk),
        RolloutViewSpec("text_world", "Turns", text_game, turns),
    ]


def recorded_game(rollout: Rollout) -> bool:
    """Whether the rollout was asked to record its game."""
    return _has(rollout, "preset", "deal") and bool(rollout.input.get("record"))


async def replay(run: OpenRun, rollout: Rollout) -> str:
    """Return the page of the game that the rollout left."""
    key = _example("werewolf.record").KEY
    for span in await run.store.spans(rollout.rollout_id):
        body: Any = span.attributes.get(BODY)
        if isinstance(body, dict) and key in body:
            page: str = _example("werewolf.replay").html(body[key])
            return page
    raise UsageError(f"rollout {rollout.rollout_id} left no game: it did not come to its end")


def trained_question(rollout: Rollout) -> bool:
    """Whether the rollout's task is a question as the example makes them, and the rollout was trained."""
    return rollout.mode == "train" and _has(rollout, "db_id", "question", "query", "kind", "folder")


async def journey(run: OpenRun, rollout: Rollout) -> str:
    """Return the page of the rollout's way."""
    draws = _example("spider.journey")
    page: str = draws.html(await draws.story(run, rollout.rollout_id))
    return page


def searched_question(rollout: Rollout) -> bool:
    """Whether the rollout's task is a question that needs two documents."""
    return _has(rollout, "question", "answer", "clue", "documents")


async def look_ups(run: OpenRun, rollout: Rollout) -> str:
    """Return the page of what the rollout searched and read."""
    return await _drawn("search.journey", run, rollout)


def text_game(rollout: Rollout) -> bool:
    """Whether the rollout's task is a game of TextWorld as the example makes them."""
    return _has(rollout, "kind", "seed", "split", "turns")


async def turns(run: OpenRun, rollout: Rollout) -> str:
    """Return the page of what the agent saw, noted and did at each turn."""
    return await _drawn("text_world.journey", run, rollout)


async def _drawn(module: str, run: OpenRun, rollout: Rollout) -> str:
    """Return the page that an example draws of a rollout's record."""
    draws = _example(module)
    [record] = await run.store.records([rollout.rollout_id])
    page: str = draws.html(draws.story(record))
    return page


def served_customer(rollout: Rollout) -> bool:
    """Whether the rollout's task is a customer of the service desk."""
    return _has(rollout, "customer", "orders", "gold")


async def talk(run: OpenRun, rollout: Rollout) -> str:
    """Return the page of the talk and of the database that it changed."""
    draws = _example("desk.view")
    [record] = await run.store.records([rollout.rollout_id])
    page: str = draws.html(draws.story(record))
    return page


def _has(rollout: Rollout, *fields: str) -> bool:
    return isinstance(rollout.input, dict) and rollout.input.keys() >= {*fields}


def _example(module: str) -> Any:
    """Import a module of an example. The folder of the files comes last in ``sys.path``: it hides nothing."""
    if (folder := str(files_folder())) not in sys.path:
        sys.path.append(folder)
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(f"{module}, which draws this, cannot be imported: {error}") from error
