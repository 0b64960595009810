"""A question's way through a run as a view of its rollout, for ``agl dashboard --plugin spider.views``."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import RolloutViewSpec
from agentlightning.types import Rollout
from agl_audit.run import OpenRun
from spider.journey import html, story


def applies(rollout: Rollout) -> bool:
    """Whether the rollout's task is a question about a database, and the rollout was trained."""
    asked = rollout.input
    return (
        rollout.mode == "train" and isinstance(asked, dict) and {"db_id", "question", "query"} <= set(asked)
    )


async def render(run: OpenRun, rollout: Rollout) -> str:
    """The page of the rollout's journey."""
    return html(await story(run, rollout.rollout_id))


@hookimpl
def agl_rollout_views() -> list[RolloutViewSpec]:
    """The journey."""
    return [RolloutViewSpec("spider", "Journey", applies, render)]
