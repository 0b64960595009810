"""Counters of the gateway, and ``GET /metrics``: Prometheus' text format, or the same state as JSON."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from agentlightning.types import Call
from agentlightning.types.select import UNKNOWN
from agentlightning.webserver.prometheus import Exposed, exposition, families

log = logging.getLogger(__name__)

OVER_LENGTH = "over-length"
"""``Call.masked`` of a prompt that was too long."""
OVER_LENGTH_FIELD = "over_length"
"""Key of ``Call.edited``: which policy was applied to it."""
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
GATE: Final = {
    "attempts": (GaugeMetricFamily, "Attempts that may call."),
    "paused": (GaugeMetricFamily, "1 while all calls wait."),
    "in_flight": (GaugeMetricFamily, "Calls at an engine."),
    "waiting": (GaugeMetricFamily, "Calls that wait at the pause gate."),
    "waited": (CounterMetricFamily, "Calls that had to wait at the pause gate."),
}
"""The state around the counters: name in JSON → kind and help."""
ENGINE: Final = {
    "up": (GaugeMetricFamily, "1 unless the endpoint is ejected."),
    "in_flight": (GaugeMetricFamily, "Requests at the endpoint."),
    "answered": (CounterMetricFamily, "Requests that the endpoint answered."),
    "lost": (CounterMetricFamily, "Requests that got no answer."),
    "failovers": (CounterMetricFamily, "Lost requests that were sent again to another endpoint."),
}
"""Name in an endpoint's state → kind and help."""
PREFIX: Final = "agl_gateway_"


def _exposed() -> Iterable[Exposed]:
    for name, (label, text) in LABELLED.items():
        yield Exposed(PREFIX + name, "counter", text, (label,))
    for name, text in PLAIN.items():
        yield Exposed(PREFIX + name, "counter", text)
    for name, (kind, text) in GATE.items():
        yield Exposed(PREFIX + name, "gauge" if kind is GaugeMetricFamily else "counter", text)
    yield Exposed(f"{PREFIX}policy_held", "gauge", "1 while the policy's calls wait.", ("policy",))
    for name, (kind, text) in ENGINE.items():
        labels = ("policy", "endpoint")
        yield Exposed(
            f"{PREFIX}engine_{name}", "gauge" if kind is GaugeMetricFamily else "counter", text, labels
        )


EXPOSED: Final = tuple(_exposed())
"""All of the page."""


class Metrics:
    """Counters since the start. Records are counted once the store acknowledged them."""

    NAMES = 1_000
    """Callers without a policy that are counted by name, at most: agents choose their names."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.masked: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.streams: Counter[str] = Counter()
        self.over_length: Counter[str] = Counter()
        """``refused``, ``dropped`` (and refused), ``truncated``, ``unchecked`` → calls; ``messages`` →
        messages that truncation left out."""
        self.failovers: Counter[str] = Counter()
        self.aborted: Counter[str] = Counter()
        """Calls that an engine gave up while their policy was held: ``calls`` that were retried, ``streams``
        that ended as errors because a part had left, ``tokens`` that both had cost."""
        self.translated: Counter[str] = Counter()
        self.unrouted: Counter[str] = Counter()
        self.split = 0
        self.unnamed = 0
        self.lost_records = 0
        self.hook_errors = 0
        self.uncounted = 0

    def count_calls(self, calls: Sequence[Call]) -> None:
        """Count stored records."""
        for call in calls:
            self.calls[call.status] += 1
            if call.masked:
                self.masked[call.masked] += 1
            if call.tags.get("role") == UNKNOWN:
                self._count_unnamed()
            if "api" in call.edited:
                self.translated[call.edited["api"]] += 1
            if "reasoning" in call.edited:
                self.split += 1
            if call.masked == OVER_LENGTH:
                dropped = call.edited.get(OVER_LENGTH_FIELD) == "drop"
                self.over_length["dropped" if dropped else "refused"] += 1
            elif OVER_LENGTH_FIELD in call.edited and call.choice == 0:
                self.over_length["truncated"] += 1
                self.over_length["messages"] += sum(b - a for a, b in call.edited["dropped"])

    def count_unrouted(self, caller: str) -> None:
        """Count a request of a caller without a policy."""
        known = caller in self.unrouted or len(self.unrouted) < self.NAMES
        self.unrouted[caller if known else "(others)"] += 1

    def _count_unnamed(self) -> None:
        """Count a call without agent, role and node; log the first with a way to name such calls."""
        if not self.unnamed:
            log.warning(
                "a model call has no agent's name: no adapter, decorator or tag gives one. Its role is "
                "'unknown', which `select` can choose like any name. To name such calls, switch on the "
                "adapter of the framework, decorate the agent's class with @agl.agent, or make the calls "
                "within `with agl.tagged(agent=…)`"
            )
        self.unnamed += 1

    def add(self, counts: Mapping[str, Any]) -> None:
        """Add the counters of another gateway, as :meth:`as_dict` returns them; none are given as ``{}``."""
        for name in LABELLED if counts else ():
            getattr(self, name).update(counts[name])
        for name in PLAIN if counts else ():
            setattr(self, name, getattr(self, name) + counts[name])

    def as_dict(self) -> dict[str, object]:
        """The counters, for JSON."""
        return {**{n: dict(getattr(self, n)) for n in LABELLED}, **{n: getattr(self, n) for n in PLAIN}}


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


def expose(state: Mapping[str, Any], accept: str) -> tuple[bytes, str]:
    """Body and content type of ``state``, in a format that the client accepts."""
    if "application/json" in accept:
        return msgspec.json.encode(state), "application/json"
    return exposition(state_families(state), accept)
