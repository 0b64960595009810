"""Counters of the gateway, and ``GET /metrics``: Prometheus' text format, or the same state as JSON."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agentlightning.types import Call
from agentlightning.types.select import UNKNOWN

log = logging.getLogger(__name__)

OVER_LENGTH = "over-length"
"""``Call.masked`` of a prompt that was too long."""
OVER_LENGTH_FIELD = "over_length"
"""Key of ``Call.edited``: which policy was applied to it."""


class Metrics:
    """Plain counters since the start. ``recorded`` counts only what the store acknowledged."""

    NAMES = 1_000
    """Callers without a policy that are counted by name: agents choose their names."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Status → records stored."""
        self.masked: Counter[str] = Counter()
        """Reason → records stored that must not be trained."""
        self.refused: Counter[str] = Counter()
        """Reason → requests refused."""
        self.streams: Counter[str] = Counter()
        """``passed`` or ``replayed`` → streamed answers."""
        self.over_length: Counter[str] = Counter()
        """``refused``, ``dropped`` (and refused), ``truncated``, ``unchecked`` → calls; ``messages`` →
        messages that truncation left out."""
        self.failovers: Counter[str] = Counter()
        """Policy → requests whose address was gone, asked again, whole, at another."""
        self.aborted: Counter[str] = Counter()
        """Calls that an engine gave up while their policy was held: ``calls`` that were asked again,
        ``streams`` that ended as errors because a part had left, ``tokens`` that both had cost."""
        self.split = 0
        """Records whose reasoning was split off."""
        self.api_formats: Counter[str] = Counter()
        """``responses``, ``messages`` → records of calls that came by that API."""
        self.unnamed = 0
        """Records of calls that nobody named: their role is ``unknown``."""
        self.unrouted: Counter[str] = Counter()
        """Who asked and has no policy → requests refused for it."""
        self.lost_records = 0
        """Records the store did not take; their answers were withheld."""
        self.hook_errors = 0
        self.uncounted = 0
        """Refusals the store did not count."""

    def count_calls(self, calls: Sequence[Call]) -> None:
        """Count stored records."""
        for call in calls:
            self.calls[call.status] += 1
            if call.masked:
                self.masked[call.masked] += 1
            if call.tags.get("role") == UNKNOWN:
                self._count_unnamed()
            if "api" in call.edited:
                self.api_formats[call.edited["api"]] += 1
            if "reasoning" in call.edited:
                self.split += 1
            if call.masked == OVER_LENGTH:
                self.over_length[
                    "dropped" if call.edited.get(OVER_LENGTH_FIELD) == "drop" else "refused"
                ] += 1
            elif OVER_LENGTH_FIELD in call.edited and call.choice == 0:
                self.over_length["truncated"] += 1
                self.over_length["messages"] += sum(b - a for a, b in call.edited["dropped"])

    def count_unrouted(self, who: str) -> None:
        """Count a request of a caller that is given no policy."""
        known = who in self.unrouted or len(self.unrouted) < self.NAMES
        self.unrouted[who if known else "(others)"] += 1

    def _count_unnamed(self) -> None:
        """Count a call that nobody named; the first says what to do."""
        if not self.unnamed:
            log.warning(
                "a model call came from nobody in particular: no adapter, mark or tag says which agent makes "
                "it. Its role is 'unknown', which `select` can choose like any name. To name such calls, "
                "switch on the adapter of their framework, mark their class with @agl.agent, or make them "
                "within `with agl.tagged(agent=…)`"
            )
        self.unnamed += 1

    def as_dict(self) -> dict[str, object]:
        """The counters by their names in JSON."""
        return {
            "calls": dict(self.calls),
            "masked": dict(self.masked),
            "refused": dict(self.refused),
            "streams": dict(self.streams),
            "over_length": dict(self.over_length),
            "moved": dict(self.failovers),
            "given_up": dict(self.aborted),
            "split": self.split,
            "dialects": dict(self.api_formats),
            "unnamed": self.unnamed,
            "unrouted": dict(self.unrouted),
            "lost_records": self.lost_records,
            "hook_errors": self.hook_errors,
            "uncounted": self.uncounted,
        }


# ----------------------------------------------------------------------------------------------- GET /metrics
_COUNTERS: Final = {
    "calls": ("calls", "status", "Records stored."),
    "masked": ("masked_calls", "reason", "Records stored that must not be trained."),
    "refused": ("refused_requests", "reason", "Requests refused."),
    "streams": ("streams", "served", "Streamed answers, passed through or replayed."),
    "over_length": ("over_length", "action", "Calls with too long a prompt, and messages left out."),
    "moved": ("failovers", "policy", "Requests that failed over to another endpoint."),
    "given_up": (
        "aborted",
        "what",
        "Calls that an engine gave up during a hold, and tokens lost.",
    ),
    "split": ("split_calls", None, "Records whose reasoning was split off."),
    "dialects": ("translated_calls", "api", "Records of calls that came by a translated API."),
    "unnamed": ("unnamed_calls", None, "Records of calls without agent, role and node."),
    "unrouted": ("unrouted_requests", "caller", "Requests refused because their caller has no policy."),
    "lost_records": ("lost_records", None, "Records that the store did not take."),
    "hook_errors": ("hook_errors", None, "Failures of the on_call hook."),
    "uncounted": ("uncounted_refusals", None, "Refusals that the store did not count."),
    "held": ("waited_calls", None, "Calls that had to wait at the pause gate."),
}
"""Key of the JSON state → name, label and help of a counter."""
_GAUGES: Final = {
    "attempts": ("open_attempts", "Attempts that may call."),
    "paused": ("paused", "1 while all calls wait."),
    "in_flight": ("calls_in_flight", "Calls at an engine."),
    "holding": ("calls_waiting", "Calls that wait at the pause gate."),
}
_ENGINE: Final = {
    "up": (GaugeMetricFamily, "1 unless nobody could connect to the engine lately."),
    "in_flight": (GaugeMetricFamily, "Requests at the engine."),
    "answered": (CounterMetricFamily, "Requests that the engine answered."),
    "lost": (CounterMetricFamily, "Requests that got no answer."),
    "moved": (CounterMetricFamily, "Lost requests that failed over."),
}
"""Key of an engine's state → kind and help of its metric."""
PREFIX: Final = "agl_gateway_"


class StateCollector(Collector):
    """The gateway's state as Prometheus metrics."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """One metric for each entry of the state."""
        state = self._state
        for key, (name, label, text) in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=[label] if label else [])
            for value, n in state[key].items() if label else [("", state[key])]:
                counter.add_metric([value] if label else [], n)
            yield counter
        for key, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(PREFIX + name, text, value=float(state[key]))
        held = GaugeMetricFamily(
            f"{PREFIX}policy_held", "1 while calls of the policy wait.", labels=["policy"]
        )
        for policy in state["engines"]:
            held.add_metric([policy], float(policy in state["policies_held"]))
        yield held
        for key, (family, text) in _ENGINE.items():
            metric = family(f"{PREFIX}engine_{key}", text, labels=["policy", "url"])
            for policy, engines in state["engines"].items():
                for engine in engines:
                    metric.add_metric([policy, engine["url"]], float(engine[key]))
            yield metric


def expose(state: Mapping[str, Any], accept: str) -> tuple[bytes, str]:
    """``state`` as body and content type, in a format that the client accepts."""
    if "application/json" in accept:
        return msgspec.json.encode(state), "application/json"
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StateCollector(state))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
