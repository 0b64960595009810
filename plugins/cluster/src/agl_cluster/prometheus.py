"""``GET /metrics`` of the servers: tables of metrics, and their text format.

Invariant: a server exposes only what its table names, so that the reference, which is made of the tables,
names everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Kind: TypeAlias = Literal["counter", "gauge"]


class Exposed(NamedTuple):
    """A metric. A counter's samples end in ``_total``."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """The name under which its values are read."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


Values = Mapping[str, float | Mapping[tuple[str, ...], float]]
"""Name of a metric → its value; with labels: their values → value."""


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def families(table: Sequence[Exposed], values: Values) -> list[Metric]:
    """Return the metrics of ``table``. ``KeyError``: there is no value for one, or no metric for a value."""
    if unknown := values.keys() - {one.name for one in table}:
        raise KeyError(f"no table of metrics names {sorted(unknown)}")
    found: list[Metric] = []
    for one in table:
        kind = CounterMetricFamily if one.kind == "counter" else GaugeMetricFamily
        family, value = kind(one.name, one.text, labels=one.labels), values[one.name]
        for labels, number in value.items() if isinstance(value, Mapping) else [((), value)]:
            family.add_metric(labels, number)
        found.append(family)
    return found


def exposition(found: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Return body and content type, in the version of the text format that the client accepts."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(list(found)))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
