"""The field ``group_reward`` of a run's description, and the grader that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema

from agentlightning.train.configured import import_target
from agentlightning.types.base import ConfigError, UsageError, meant, nearest
from agentlightning.types.sections import FILE, Section
from agl_judge.graders.relative import Agree, Rank, Tournament
from agl_judge.graders.rubric import Criterion, Rubric
from agl_judge.group import GroupFunction, GroupGrader

KEY = "group_reward"


def _given(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, Mapping) and (
        len(value) != 1 or not isinstance(next(iter(value.values())), Mapping | None)
    ):
        raise ValueError(f"{KEY}: give one name with its options: {{rank: {{judge: NAME}}}}")
    if info.context == FILE and not isinstance(value, str | Mapping | None):
        raise ValueError(f"{KEY}: give a name, or one with its options, not {value!r}")
    return value


GroupRewardField: TypeAlias = Annotated[
    Any,
    BeforeValidator(_given),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "additionalProperties": {"type": ["object", "null"]},
                    "minProperties": 1,
                    "maxProperties": 1,
                },
                {"type": "null"},
            ]
        }
    ),
]


class GroupRewardRun(Section):
    """A run with a reward that sees the group."""

    group_reward: GroupRewardField = None
    """What gives rewards to the finished rollouts of a task, which it sees together (``docs/rewards.md``):
    ``module:function``, or ``agree``, ``rank``, ``tournament``, ``rubric`` or ``grader`` with its options,
    ``{rank: {judge: NAME}}``; from Python also a function or an object; none: rollouts have the rewards that
    they have of themselves."""


def _rubric(
    criteria: Mapping[str, Any], judge: str | None = None, show: Sequence[str] = (), **sampling: Any
) -> Rubric:
    """Make a rubric of ``{name: {ask: …, weight: …}}`` or ``{name: {check: module:function}}``."""
    if not isinstance(criteria, Mapping):
        raise UsageError(
            f"rubric: criteria is {criteria!r:.80}; give each a name, as in {{correct: It is right.}}"
        )
    made = []
    for name, given in criteria.items():
        given = dict(given if isinstance(given, Mapping) else {"ask": given})
        if isinstance(check := given.get("check"), str):
            given["check"] = import_target(check, f"{KEY}.rubric.criteria.{name}.check")
        if not isinstance(weight := given.get("weight", 1.0), int | float) or isinstance(weight, bool):
            raise UsageError(f"rubric: criteria.{name}: weight is {weight!r:.80}; give a number above 0")
        made.append(_called(Criterion, {"name": name, **given}, f"rubric: criteria.{name}"))
    return Rubric(*made, judge=judge, show=show, **sampling)


def _agree(values: Any = "majority", read: Any = None) -> Agree:
    found = import_target(read, f"{KEY}.agree.read") if isinstance(read, str) else read
    return Agree(values=values, read=found)


def _grader(file: str, folder: Path, **options: Any) -> GroupGrader:
    from agl_judge.openai_graders.grader import OpenAIGrader

    found: GroupGrader = OpenAIGrader.read(folder / Path(file).expanduser(), **options)
    return found


OURS: Mapping[str, Callable[..., GroupGrader]] = {
    "agree": _agree,
    "grader": _grader,
    "rank": Rank,
    "rubric": _rubric,
    "tournament": Tournament,
}
"""Name → what makes the grader of its options."""
HIDDEN = ("name", "folder")
"""Parameters of those that are no options of theirs."""


def _called(made: Callable[..., Any], options: Mapping[str, Any], where: str) -> Any:
    """Return what ``made`` makes of the options. Raise :class:`UsageError` for one that it does not know, and
    for one that it needs and does not get; the message begins with ``where``.
    """
    parameters = signature(made).parameters
    open_ended = [one.kind for one in parameters.values() if one.kind == one.VAR_KEYWORD]
    known = [name for name, one in parameters.items() if one.kind != one.VAR_KEYWORD and name not in HIDDEN]
    for name in options:
        near = nearest(name, known) if open_ended else name
        if name not in (*known, *HIDDEN) and near is not None:
            raise UsageError(f"{where}: there is no option {name!r}{meant(name, known, '')}")
    for name in known:
        if parameters[name].default is Parameter.empty and name not in options:
            raise UsageError(f"{where}: the option {name!r} is missing; it has {', '.join(known)}")
    return made(**options)


def make_grader(given: Any, folder: Path, key: str = KEY) -> GroupGrader:
    """Return the grader that ``given`` is or names. Raise :class:`ConfigError`, which begins with ``key``.
    ``folder``: that of the run's file, to which a grader's file is relative.
    """
    options: Mapping[str, Any] | None = None
    if isinstance(given, Mapping):
        ((given, options),) = given.items()
    if isinstance(given, str):
        known = OURS.get(given)
        if known is None and ":" not in given:
            raise ConfigError(
                f"{key}: {given!r} is no module:function{meant(given, [*OURS], 'group reward')}"
            )
        made = import_target(given, key) if known is None else known
        made = partial(made, folder=folder) if known is _grader else made
        if known is None and options is None:
            given = made
        else:
            try:
                given = _called(made, options or {}, given)
            except TypeError as error:
                raise ConfigError(f"{key}: {given}: {error}") from None
            except UsageError as error:
                raise ConfigError(f"{key}: {error}") from None
    if isinstance(given, type) or not callable(given):
        raise ConfigError(
            f"{key}: {given!r:.200} is no function of a group; decorate one with @agl.group_reward"
        )
    found: GroupGrader = given if hasattr(given, "relative") else GroupFunction(given)
    return found
