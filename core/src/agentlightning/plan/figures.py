"""A figure of a plan, and where it comes from."""

from __future__ import annotations

from typing import Literal

import msgspec

Basis = Literal["measured", "formula", "assumption"]


class PlanFigure(msgspec.Struct, frozen=True):
    """``basis``: all that it rests on. It is never better than the weakest of them."""

    part: str
    name: str
    value: float
    unit: str
    basis: tuple[Basis, ...]
    how: str


class PlanLimit(msgspec.Struct, frozen=True):
    """Something that a run can have too little of. ``used``: share of what there is; above 1 it is too
    little.
    """

    name: str
    used: float
    needs: str
    has: str
    change: str


class Plan(msgspec.Struct, frozen=True):
    """What a step needs, and its limits, the tightest first."""

    inputs: dict[str, int | float | str | None]
    assumptions: dict[str, float]
    figures: list[PlanFigure]
    limits: list[PlanLimit]
    notes: list[str]

    @property
    def binds_first(self) -> PlanLimit:
        """Return the tightest limit."""
        return self.limits[0]

    def value(self, name: str) -> float:
        """Return the figure with this name."""
        return next(one.value for one in self.figures if one.name == name)
