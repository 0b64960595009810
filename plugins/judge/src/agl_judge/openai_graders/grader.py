"""A grader of OpenAI's documented JSON as the reward of a group's rollouts, each by itself.

``item`` is the task, ``sample`` what the rollout said: ``output_text``, ``output_json`` where the text is
JSON, ``output_tools`` and ``choices``. Its numbers mean the same in every group, so evaluations count them.

What cannot be done as documented is refused by name when the file is read, before a run begins: unknown
types and fields of graders, metrics without a library, models without a judge, code that cannot be isolated.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentlightning.types import UsageError
from agl_judge.client import BadVerdict
from agl_judge.graders.reading import read_key, read_score
from agl_judge.group import Finished, Group, Rewards
from agl_judge.openai_graders import sandbox
from agl_judge.openai_graders.formula import Formula
from agl_judge.openai_graders.similarity import metric
from agl_judge.openai_graders.templates import fill, places

Names = Mapping[str, Any]
"""The namespaces ``item`` and ``sample``."""


class Ask(Protocol):
    """Asks the judge: :meth:`.Group.ask` without the judge's name."""

    async def __call__(
        self, messages: Sequence[Mapping[str, Any]], read: Callable[[str], Any], **sampling: Any
    ) -> Any: ...


class Part(Protocol):
    """A grader that was read."""

    async def score(self, names: Names, ask: Ask) -> float | None:
        """Return its score; ``None``: the judge gave none. Raise :class:`BadVerdict` where there is none."""


def _texts(given: Mapping[str, Any], *keys: str) -> list[str]:
    for key in keys:
        if not isinstance(given.get(key), str):
            raise ValueError(f"{key} is {given.get(key)!r:.80}: give a text")
        places(given[key])
    return [given[key] for key in keys]


@dataclass(frozen=True)
class StringCheck:
    """A ``string_check``: equality, or whether the reference stands in the input."""

    operation: str
    input: str
    reference: str

    @classmethod
    def read(cls, given: Mapping[str, Any], judge: bool) -> StringCheck:
        if given.get("operation") not in ("eq", "ne", "like", "ilike"):
            raise ValueError(f"operation is {given.get('operation')!r}: give eq, ne, like or ilike")
        return cls(given["operation"], *_texts(given, "input", "reference"))

    async def score(self, names: Names, ask: Ask) -> float | None:
        text, reference = fill(self.input, names), fill(self.reference, names)
        match self.operation:
            case "eq":
                return float(text == reference)
            case "ne":
                return float(text != reference)
            case "like":
                return float(reference in text)
        return float(reference.lower() in text.lower())


@dataclass(frozen=True)
class TextSimilarity:
    """A ``text_similarity``: a metric of two texts, from 0 to 1. The score does not read ``pass_threshold``,
    which is for reports."""

    measure: Callable[[str, str], float]
    input: str
    reference: str

    @classmethod
    def read(cls, given: Mapping[str, Any], judge: bool) -> TextSimilarity:
        return cls(metric(str(given.get("evaluation_metric"))), *_texts(given, "input", "reference"))

    async def score(self, names: Names, ask: Ask) -> float | None:
        return self.measure(fill(self.input, names), fill(self.reference, names))


def _messages(given: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the messages of a model grader; ``developer`` becomes ``system``."""
    asked = given.get("input")
    if not isinstance(asked, list) or not asked:
        raise ValueError("input is no list of messages")
    found = []
    for one in asked:
        content = one.get("content") if isinstance(one, Mapping) else None
        if isinstance(content, Mapping) and isinstance(content.get("text"), str):
            content = content["text"]
        if not isinstance(content, str):
            raise ValueError("a message of input has no text (images and sounds are not supported)")
        places(content)
        role = str(one.get("role", "user"))
        found.append({"role": "system" if role == "developer" else role, "content": content})
    return found


_SAMPLING = {
    "temperature",
    "top_p",
    "seed",
    "reasoning_effort",
    "max_completions_tokens",
    "max_completion_tokens",
}


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    asked = dict(given.get("sampling_params") or {})
    if unknown := sorted(set(asked) - _SAMPLING):
        raise ValueError(f"sampling_params.{unknown[0]} is none of {', '.join(sorted(_SAMPLING))}")
    if "max_completions_tokens" in asked:  # as the reference spells it
        asked["max_completion_tokens"] = asked.pop("max_completions_tokens")
    return {key: value for key, value in asked.items() if value is not None}


@dataclass(frozen=True)
class ScoreModel:
    """A ``score_model``: a model gives a number within ``range``."""

    messages: list[dict[str, str]]
    low: float
    high: float
    sampling: dict[str, Any]

    @classmethod
    def read(cls, given: Mapping[str, Any], judge: bool) -> ScoreModel:
        if not judge:
            raise UsageError(f"it asks the model {given.get('model')!r}: name the judge that stands for it")
        low, high = given.get("range") or (0.0, 1.0)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"range is {given.get('range')!r}")
        return cls(_messages(given), float(low), float(high), _sampling(given))

    async def score(self, names: Names, ask: Ask) -> float | None:
        form = f'Reply with JSON alone: {{"result": a number from {self.low:g} to {self.high:g}}}'
        asked = [{**one, "content": fill(one["content"], names)} for one in self.messages]
        asked.append({"role": "user", "content": form})

        def read(text: str) -> float:
            return read_score(read_key(text, "result"), "'result'", self.low, self.high)

        found: float | None = await ask(asked, read, **self.sampling)
        return found


@dataclass(frozen=True)
class LabelModel:
    """A ``label_model``: a model chooses a label; 1 for a passing one, else 0."""

    messages: list[dict[str, str]]
    labels: list[str]
    passing: frozenset[str]
    sampling: dict[str, Any]

    @classmethod
    def read(cls, given: Mapping[str, Any], judge: bool) -> LabelModel:
        if not judge:
            raise UsageError(f"it asks the model {given.get('model')!r}: name the judge that stands for it")
        labels, passing = given.get("labels"), given.get("passing_labels")
        if not isinstance(labels, list) or not isinstance(passing, list) or not set(passing) <= set(labels):
            raise ValueError("give labels, and passing_labels, which are some of them")
        return cls(_messages(given), labels, frozenset(passing), _sampling(given))

    async def score(self, names: Names, ask: Ask) -> float | None:
        form = f'Reply with JSON alone: {{"label": one of {json.dumps(self.labels)}}}'
        asked = [{**one, "content": fill(one["content"], names)} for one in self.messages]
        asked.append({"role": "user", "content": form})

        def read(text: str) -> str:
            label = read_key(text, "label")
            if label not in self.labels:
                raise BadVerdict(f"'label' is {label!r:.80} and none of {', '.join(self.labels)}")
            return str(label)

        found: str | None = await ask(asked, read, **self.sampling)
        return None if found is None else float(found in self.passing)


@dataclass(frozen=True)
class PythonCode:
    """A ``python`` grader: ``grade(sample, item)`` of its source, isolated (:mod:`.sandbox`)."""

    source: str

    @classmethod
    def read(cls, given: Mapping[str, Any], judge: bool) -> PythonCode:
        source = given.get("source")
        if not isinstance(source, str) or len(source.encode()) > sandbox.LONGEST_SOURCE:
            raise ValueError(f"source is no text of at most {sandbox.LONGEST_SOURCE} bytes")
        sandbox.sandbox()
        return cls(source)

    async def score(self, names: Names, ask: Ask) -> float | None:
        return await sandbox.grade(self.source, names["sample"], names["item"])


@dataclass(frozen=True)
class Multi:
    """A ``multi`` grader: a formula over the scores of others."""

    graders: dict[str, Part]
    formula: Formula

    @classmethod
    def read(cls, given: Mapping[str, Any], judge: bool) -> Multi:
        parts = given.get("graders")
        if not isinstance(parts, Mapping) or not parts:
            raise ValueError("graders is no object of graders by name")
        for name, one in parts.items():
            if isinstance(one, Mapping) and one.get("type") == "multi":
                raise ValueError(f"graders.{name}: a multigrader holds no other")
        made = {name: read_part(one, f"graders.{name}", judge=judge) for name, one in parts.items()}
        try:
            formula = Formula(str(given.get("calculate_output")), frozenset(made))
        except ValueError as error:
            raise ValueError(f"calculate_output: {error}") from None
        return cls(made, formula)

    async def score(self, names: Names, ask: Ask) -> float | None:
        found = await asyncio.gather(*(one.score(names, ask) for one in self.graders.values()))
        if any(one is None for one in found):
            return None
        scores = {name: one for name, one in zip(self.graders, found, strict=True) if one is not None}
        return self.formula.value(scores)


_FIELDS: dict[str, tuple[Any, set[str]]] = {
    "string_check": (StringCheck, {"operation", "input", "reference"}),
    "text_similarity": (TextSimilarity, {"input", "reference", "evaluation_metric", "pass_threshold"}),
    "score_model": (ScoreModel, {"input", "model", "range", "sampling_params", "pass_threshold"}),
    "label_model": (LabelModel, {"input", "model", "labels", "passing_labels", "sampling_params"}),
    "python": (PythonCode, {"source", "image_tag", "pass_threshold"}),
    "multi": (Multi, {"graders", "calculate_output"}),
}
"""Type → its class, and its fields beside ``type`` and ``name``."""


def read_part(given: Any, where: str, *, judge: bool) -> Part:
    """Return the grader that JSON describes. Raise :class:`UsageError`, which begins with ``where``, for one
    that cannot be done as documented. ``judge``: whether there is one to ask.
    """
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind not in _FIELDS:
        raise UsageError(f"{where}: the type {kind!r} is none of {', '.join(_FIELDS)}")
    made, known = _FIELDS[kind]
    if unknown := sorted(set(given) - known - {"type", "name"}):
        raise UsageError(f"{where}: {kind} has no field {unknown[0]!r} (it has {', '.join(sorted(known))})")
    try:
        found: Part = made.read(given, judge)
    except UsageError as error:
        text = str(error)
        raise UsageError(text if text.startswith("graders.") else f"{where}: {kind}: {text}") from None
    except (ValueError, TypeError) as error:
        raise UsageError(f"{where}: {kind}: {error}") from None
    return found


class OpenAIGrader:
    """Grades each rollout by a grader of OpenAI's. ``judge``: the frozen policy that stands for its models;
    ``part``: what was read of it.
    """

    relative = False

    def __init__(self, given: Mapping[str, Any], judge: str | None = None, where: str = "grader") -> None:
        self.given = given
        self.part = read_part(given, where, judge=judge is not None)
        self.judge = judge
        self.name = str(given.get("name") or given.get("type"))

    @classmethod
    def read(cls, file: Path, judge: str | None = None) -> OpenAIGrader:
        """Read a file. Raise :class:`UsageError` for one that is no grader."""
        try:
            given = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{file}: it cannot be read as JSON: {error}") from None
        return cls(given, judge, str(file))

    @property
    def judges(self) -> Sequence[str]:
        return () if self.judge is None else (self.judge,)

    async def __call__(self, group: Group) -> Rewards:
        return await asyncio.gather(*(self._grade(group, one) for one in group.rollouts))

    async def _grade(self, group: Group, one: Finished) -> float | None:
        judge = self.judge

        async def ask(messages: Any, read: Any, **sampling: Any) -> Any:
            assert judge is not None  # checked when the grader was read
            return await group.ask(judge, messages, read, **sampling)

        try:
            found = await self.part.score({"item": group.task, "sample": sample_of(one)}, ask)
        except BadVerdict as error:
            group.reasons[one.rollout_id] = f"grader-error: {error}"
            return None
        if found is None:
            group.reasons[one.rollout_id] = "no-verdict: the judge gave no usable answer"
        return found


def sample_of(one: Finished) -> dict[str, Any]:
    """Return the namespace ``sample`` of a rollout: of its last call."""
    choices = one.trace.calls[-1].answer["choices"] if one.trace.calls else []
    message = choices[-1].get("message", {}) if choices else {}
    return sample_of_text(one.answer, message.get("tool_calls"), choices)


def sample_of_text(text: str, tools: Any = None, choices: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the namespace ``sample`` of a text. ``output_json`` is there where the text is JSON."""
    found: dict[str, Any] = {"output_text": text, "output_tools": tools or [], "choices": list(choices)}
    try:
        found["output_json"] = json.loads(text)
    except (ValueError, RecursionError):
        pass
    return found
