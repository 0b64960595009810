"""The points of a run's curves: names, values, and the number of finished steps that they belong to.

Invariant: a value that is missing (NaN) makes no point; it is a gap in the curve, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from agentlightning.types import Evaluation, StepReport

_SAMPLED = "-sampled"
_TIMES = frozenset({"before", "after"})


class Point(NamedTuple):
    """Values after ``step`` finished steps."""

    step: int
    values: dict[str, float]


def step_point(report: StepReport, *, several: bool = False) -> Point:
    """Return the point of a training step. ``several``: the run trains several policies, whose names stand
    in front of their values.

    ``train/*``: the metrics, ``train/tokens_per_second`` among them; ``left_out/*``, ``failed/*``,
    ``retried/*`` …: the counters, by their reasons; ``seconds/*``: the phases.
    """
    front = f"{report.policy}/" if several else ""
    values = {name if "/" in name else f"train/{name}": value for name, value in report.metrics.items()}
    values |= {f"seconds/{phase}": value for phase, value in report.seconds.items()}
    values["train/policy_version"] = float(report.policy_version)
    took = sum(report.seconds.values())
    if took > 0 and "tokens" in report.metrics:
        values["train/tokens_per_second"] = report.metrics["tokens"] / took
    return Point(report.step + 1, _known({front + name: value for name, value in values.items()}))


def evaluation_point(evaluation: Evaluation, *, finished: int, steps: int) -> Point:
    """Return the point of an evaluation. ``finished``: steps that the run has finished; ``steps``: all that
    it will make.

    The evaluations of a run's schedule are one curve, ``evaluation/*``, and those with sampled answers
    another; each named set has one of its own, ``evaluation/<set>/*``, and so has an evaluation by any other
    name.
    """
    name, _, of = evaluation.name.removesuffix(_SAMPLED).partition("/")
    when, _, number = name.partition("-")
    scheduled = name in _TIMES or (when == "step" and number.isdigit())
    curve = "evaluation" if scheduled else f"evaluation-{name}"
    curve += f"/{of}" if of else ""
    curve += "_sampled" if evaluation.name.endswith(_SAMPLED) else ""
    values = {"reward": evaluation.reward, "tasks": float(evaluation.n), "failed": float(evaluation.failed)}
    if evaluation.ci is not None:
        values |= {"reward_low": evaluation.ci[0], "reward_high": evaluation.ci[1]}
    if evaluation.seconds:
        values["seconds"] = evaluation.seconds
    if scheduled:
        finished = {"before": 0, "after": steps}.get(name) if name in _TIMES else int(number)  # type: ignore[assignment]
    return Point(finished, _known({f"{curve}/{key}": value for key, value in values.items()}))


def summary_values(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a run's summary, those of nested tables with dotted names: totals, rewards before
    and after, and what was refused or lost, with its reasons (``accounts``)."""
    found = flat(summary)
    return _known(
        {k: float(v) for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    )


def flat(value: Mapping[str, Any], front: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted names. Lists and other values stay as they are."""
    return dict(_flat(value, front))


def _flat(value: Mapping[str, Any], front: str) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _flat(inner, f"{front}{name}.")
        else:
            yield f"{front}{name}", inner


def _known(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if math.isfinite(value)}
