"""Measured costs of gateway, store and trainer, with the machine and the date of each.

``costs.json`` beside this module holds those of the committed benchmarks (``scripts/sizing.py`` writes it);
a file of the same form holds those of another machine (``agl plan --costs FILE``).
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import msgspec

from agentlightning.types.base import ConfigError


class CostSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a cost was measured: by which command, on what, and when."""

    command: str
    machine: str
    date: str


class Cost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured cost: what it is at some sizes. ``points``: (size, cost), sizes ascending."""

    about: str
    unit: str
    points: list[tuple[float, float]]
    sources: list[CostSource]

    def at(self, size: float) -> float:
        """Return the cost at a size: on the line between the two measured sizes around it. Below the
        smallest, the cost of the smallest; above the largest, on the line through smallest and largest.
        """
        first, last = self.points[0], self.points[-1]
        if size <= first[0] or first == last:
            return first[1]
        low, high = first, last
        for point in self.points:
            if point[0] < size:
                low = point
        for point in reversed(self.points):
            if point[0] >= size:
                high = point
        if size > last[0]:
            low, high = first, last
        return low[1] + (high[1] - low[1]) * (size - low[0]) / (high[0] - low[0])

    def growing(self, size: float) -> float:
        """Return the cost at a size where no size costs nothing: below the smallest, its share of it."""
        first = self.points[0]
        return first[1] * size / first[0] if size < first[0] else self.at(size)

    def beyond(self, size: float) -> bool:
        """Whether the size is above the largest one measured, among several."""
        return len(self.points) > 1 and size > self.points[-1][0]


class Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the parts cost that run on CPUs. Sizes of a call and of a step are in tokens."""

    gateway_ms: Cost
    """CPU of a recorded call, by the tokens of its prompt and answer."""
    chunk_ms: Cost
    """CPU of a chunk of a stream beyond that."""
    gateway_mb: Cost
    """Resident memory of a gateway's process."""
    store_calls_per_s: Cost
    """Calls that one process stores durably in a second."""
    stored_bytes: Cost
    """Bytes in the store's file for each token of a finished conversation."""
    step_behind_s: Cost
    """Seconds from the end of a step's last rollout until verl has its rows, by the step's tokens."""
    step_credit_s: Cost
    """Seconds of Python for a step's credit and rows in all, by the step's tokens."""
    step_mb: Cost
    """Peak memory of the trainer's process, by the step's tokens."""
    shipped_mb: Cost
    """Rows that are shipped to the trainer's ranks, by the step's tokens."""

    def all(self) -> dict[str, Cost]:
        """Return the costs by their names."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


def committed() -> Costs:
    """Return the costs that the suite's own benchmarks measured."""
    return msgspec.json.decode((files("agentlightning.plan") / "costs.json").read_bytes(), type=Costs)


def read_costs(file: Path) -> Costs:
    """Read a file of the form of ``costs.json``. Raises :class:`ConfigError` with what is wrong in it."""
    try:
        costs = msgspec.json.decode(file.read_bytes(), type=Costs)
    except FileNotFoundError as error:
        raise ConfigError(
            f"--costs {file}: no such file; `python scripts/sizing.py {file}` writes one from your benchmarks"
        ) from error
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"--costs {file}: {error}; `python scripts/sizing.py {file}` writes it anew"
        ) from error
    check(costs, f"--costs {file}")
    return costs


def check(costs: Costs, where: str) -> None:
    """Raise :class:`ConfigError` for a cost without points, with sizes out of order, or not positive."""
    for name, cost in costs.all().items():
        sizes = [size for size, _ in cost.points]
        if not sizes or sizes != sorted(set(sizes)):
            raise ConfigError(f"{where}: {name}.points: at least one point is needed, sizes ascending")
        if any(value <= 0 for _, value in cost.points):
            raise ConfigError(f"{where}: {name}.points: a cost is more than 0")
