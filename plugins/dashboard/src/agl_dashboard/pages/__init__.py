"""The pages. Each reads what it shows from a store, by the functions of core that the command line uses too
(``agl runs``, ``rollouts``, ``trace``, ``explain``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentlightning.webserver.guard import Handler
from agl_dashboard.pages import (
    call,
    comparison,
    difference,
    forest,
    ledger,
    machines,
    resources,
    rollout,
    rollouts,
    run,
    runs,
    token,
    view,
)

ROUTES: Final[Mapping[str, Handler]] = {
    "/": runs.page,
    "/s/{place}/runs/{run}": run.page,
    "/compare": comparison.page,
    "/s/{place}/machines": machines.page,
    "/s/{place}/resources": resources.page,
    "/s/{place}/resources/{resources}": resources.one,
    "/s/{place}/difference": difference.page,
    "/s/{place}/runs/{run}/configuration": run.configuration,
    "/s/{place}/runs/{run}/ledger": ledger.page,
    "/s/{place}/runs/{run}/rollouts": rollouts.page,
    "/s/{place}/rollouts/{rollout}": rollout.page,
    "/s/{place}/rollouts/{rollout}/credit": rollout.credit,
    "/s/{place}/rollouts/{rollout}/forest": forest.page,
    "/s/{place}/rollouts/{rollout}/views/{view}": view.page,
    "/s/{place}/rollouts/{rollout}/views/{view}/frame": view.frame,
    "/s/{place}/rollouts/{rollout}/calls/{call}": call.page,
    "/s/{place}/rollouts/{rollout}/calls/{call}/tokens/{token}": token.page,
}
"""Path → page."""
