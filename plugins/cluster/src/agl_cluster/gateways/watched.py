"""A gateway with a page for Prometheus and an access log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

from aiohttp import web
from prometheus_client.metrics_core import Metric

from agentlightning.gateway import AttemptInfo, Gateway
from agl_cluster.access_log import log_requests
from agl_cluster.prometheus import Exposed, Kind, exposition, families

LABELLED: Final = {
    "calls": ("status", "Records stored."),
    "masked": ("reason", "Records stored that must not be trained."),
    "refused": ("reason", "Requests refused."),
    "streams": ("served", "Streamed answers, passed through or replayed."),
    "over_length": ("action", "Prompts that were too long; messages cut."),
    "failovers": ("policy", "Requests sent again to another endpoint."),
    "aborted": ("what", "Calls and streams given up during a hold; tokens lost."),
    "translated": ("api", "Records of calls by a translated API."),
    "unrouted": ("caller", "Requests of callers that have no policy."),
}
"""Counters with a label: name in :class:`Metrics` and in JSON → label and help for Prometheus."""
PLAIN: Final = {
    "split": "Records whose reasoning was split off.",
    "unnamed": "Records of calls without agent, role and node.",
    "lost_records": "Records that the store did not take; their answers were withheld.",
    "hook_errors": "Failures of the on_call hook.",
    "uncounted": "Refusals that the store did not count.",
}
"""Counters without a label: name → help."""
GATE: Final[dict[str, tuple[Kind, str]]] = {
    "attempts": ("gauge", "Attempts that may call."),
    "paused": ("gauge", "1 while all calls wait."),
    "in_flight": ("gauge", "Calls at an engine."),
    "waiting": ("gauge", "Calls that wait at the pause gate."),
    "waited": ("counter", "Calls that had to wait at the pause gate."),
}
"""The state around the counters: name in JSON → kind and help."""
ENGINE: Final[dict[str, tuple[Kind, str]]] = {
    "up": ("gauge", "1 unless the endpoint is ejected."),
    "in_flight": ("gauge", "Requests at the endpoint."),
    "answered": ("counter", "Requests that the endpoint answered."),
    "lost": ("counter", "Requests that got no answer."),
    "failovers": ("counter", "Lost requests that were sent again to another endpoint."),
}
"""Name in an endpoint's state → kind and help."""
PREFIX: Final = "agl_gateway_"


def _exposed() -> Iterable[Exposed]:
    for name, (label, text) in LABELLED.items():
        yield Exposed(PREFIX + name, "counter", text, (label,))
    for name, text in PLAIN.items():
        yield Exposed(PREFIX + name, "counter", text)
    for name, (kind, text) in GATE.items():
        yield Exposed(PREFIX + name, kind, text)
    yield Exposed(f"{PREFIX}policy_held", "gauge", "1 while the policy's calls wait.", ("policy",))
    for name, (kind, text) in ENGINE.items():
        yield Exposed(f"{PREFIX}engine_{name}", kind, text, ("policy", "endpoint"))


EXPOSED: Final = tuple(_exposed())
"""All of the page."""


class WatchedGateway(Gateway):
    """Its ``GET /metrics`` has two forms: Prometheus' text, and with ``Accept: application/json`` that of the
    gateway alone.
    """

    def expect_attempt(self, info: AttemptInfo) -> None:
        """Take the facts about an attempt that was opened in another process; the rest is in the store."""
        self._attempts.expect(info)

    def app(self, *, local: bool = True) -> web.Application:
        """The gateway's application with both."""
        app = super().app(local=local)
        app.middlewares.append(self._page)
        log_requests(app, "gateway")
        return app

    @property
    def _page(self) -> Any:
        @web.middleware
        async def page(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            accept = request.headers.get("Accept", "")
            if request.method != "GET" or request.path != "/metrics" or "application/json" in accept:
                return await handler(request)
            body, kind = exposition(state_families(self.state()), accept)
            return web.Response(body=body, headers={"Content-Type": kind})

        return page


def state_families(state: Mapping[str, Any]) -> Iterable[Metric]:
    """Return one metric for each entry of the gateway's state (its JSON)."""
    engines = {(policy, str(i)): e for policy, of in state["engines"].items() for i, e in enumerate(of)}
    held = state["policies_held"]
    values: dict[str, float | dict[tuple[str, ...], float]] = {
        **{PREFIX + name: {(value,): n for value, n in state[name].items()} for name in LABELLED},
        **{PREFIX + name: float(state[name]) for name in (*PLAIN, *GATE)},
        f"{PREFIX}policy_held": {(policy,): float(policy in held) for policy in state["engines"]},
        **{
            f"{PREFIX}engine_{name}": {where: float(one[name]) for where, one in engines.items()}
            for name in ENGINE
        },
    }
    return families(EXPOSED, values)
