"""The replay of a recorded game as a view of its rollout, for ``agl dashboard --plugin werewolf.views``."""

from __future__ import annotations

from typing import Any

from agentlightning.capture.emit import BODY
from agentlightning.hookspecs import hookimpl
from agentlightning.types import Rollout, UsageError
from agl_audit.run import OpenRun
from agl_dashboard.hookspecs import RolloutViewSpec
from werewolf.record import KEY
from werewolf.replay import html


def applies(rollout: Rollout) -> bool:
    """Whether the rollout was asked to record its game."""
    return isinstance(rollout.input, dict) and "preset" in rollout.input and bool(rollout.input.get("record"))


async def render(run: OpenRun, rollout: Rollout) -> str:
    """The page of the game that the rollout left."""
    for span in await run.store.spans(rollout.rollout_id):
        body: Any = span.attributes.get(BODY)
        if isinstance(body, dict) and KEY in body:
            return html(body[KEY])
    raise UsageError(f"rollout {rollout.rollout_id} left no game: it did not come to its end")


@hookimpl(optionalhook=True)
def agl_rollout_views() -> list[RolloutViewSpec]:
    """The replay."""
    return [RolloutViewSpec("werewolf", "Replay", applies, render)]
