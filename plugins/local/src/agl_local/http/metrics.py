"""``GET /metrics`` of the engine: Prometheus' text format, or the same state as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class Exposed(NamedTuple):
    """A metric. A counter's samples end in ``_total``."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    labels: tuple[str, ...] = ("policy",)

    @property
    def sample(self) -> str:
        """The name under which its values are read."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


PREFIX: Final = "agl_engine_"
EXPOSED: Final = (
    Exposed(f"{PREFIX}version", "gauge", "Version of the policy that is served."),
    Exposed(f"{PREFIX}paused", "gauge", "1 while no request begins."),
    Exposed(f"{PREFIX}closed", "gauge", "1 once the engine has failed or was closed."),
    Exposed(f"{PREFIX}running", "gauge", "Samples that are generated now."),
    Exposed(f"{PREFIX}waiting", "gauge", "Samples that wait for room."),
    Exposed(f"{PREFIX}generated_tokens", "counter", "Tokens of answers."),
    Exposed(f"{PREFIX}prompt_tokens", "counter", "Tokens of prompts."),
    Exposed(f"{PREFIX}reused_tokens", "counter", "Tokens of prompts that needed no computation."),
    Exposed(f"{PREFIX}prefix_hits", "counter", "Samples whose prompt began like an earlier one."),
    Exposed(f"{PREFIX}steps", "counter", "Passes through the network."),
    Exposed(f"{PREFIX}requests", "counter", "Requests."),
    Exposed(f"{PREFIX}finished", "counter", "Samples that were finished."),
    Exposed(f"{PREFIX}cancelled", "counter", "Requests that were cancelled."),
    Exposed(f"{PREFIX}hints", "counter", "Requests with an effort or verbosity, which have no effect."),
    Exposed(f"{PREFIX}failed", "counter", "Requests that failed."),
)


class _Page(Collector):
    def __init__(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        self._states = states

    def collect(self) -> Iterable[Metric]:
        for one in EXPOSED:
            kind = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
            family = kind(one.name, one.text, labels=one.labels)
            for policy, state in self._states.items():
                family.add_metric((policy,), _number(state[one.name.removeprefix(PREFIX)]))
            yield family


def prometheus(states: Mapping[str, Mapping[str, Any]], accept: str) -> tuple[bytes, str]:
    """Return body and content type for the state of each policy (``Engine.status``)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(states))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _number(value: Any) -> float:
    """A number as it is; of a state, whether it holds."""
    return float(value) if isinstance(value, int | float) else float(bool(value))
