"""The distillation of one run: it asks the teachers for each step, keeps what they said, and edits the batch.

Invariants: what is trained is a function of credit's batch and of the link that is written before it
(:mod:`.edit`); a call that no teacher could score is left out and counted, never taken as 0; a teacher sees
whole rows, so that a prompt which turns share is computed once.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlightning.algorithms.context import Context
from agentlightning.store.pages import RECORD_PAGE, pages
from agentlightning.types import Batch, Call, Recipe, Record, Row
from agentlightning.types.base import ConfigError
from agl_distill.edit import edited, pack
from agl_distill.endpoint import AT, EndpointTeacher
from agl_distill.hint import Hint, Renders, hint_of, hinted_row
from agl_distill.names import NAME, RULE
from agl_distill.settings import SELF, DistillSection, EndpointSection
from agl_distill.teacher import NOT_FINITE, WRONG_LENGTH, Answer, FolderTeacher, Teacher

ROUNDING = 1e-4
"""The largest logprob above 0 that rounding can explain."""


def distillation_of(config: Any, recipe: Recipe, plugins: Any) -> Distillation | Untaught | None:
    """Return the edit that a run's description asks for. Raise :class:`ConfigError` for one that cannot be
    carried out.
    """
    settings: DistillSection | None = getattr(config, NAME, None)
    if not config.training.steps:  # it trains nothing
        return None
    if settings is None:
        if recipe.credit == RULE:
            raise ConfigError(
                f"distill: recipe {recipe.name!r} has no advantages but a teacher's, and there is none; say "
                "who teaches, e.g. distill: {teacher: FOLDER}"
            )
        return Untaught() if config.resume else None
    given = config.training.algorithm
    if isinstance(given, str) and given not in plugins.recipes and given != "rl":
        raise ConfigError(
            f"distill: the algorithm {given!r} trains no rows of the run's own rollouts; use algorithm: "
            "distill, or a recipe of rewards (grpo, …) that a teacher adds to"
        )
    if recipe.critic:
        raise ConfigError(
            f"distill: recipe {recipe.name!r} takes its advantages from a critic, which a teacher cannot add "
            "to; use algorithm: distill, or a recipe without a critic"
        )
    return Distillation(settings, config, recipe, plugins)


@dataclass(slots=True)
class Told:
    """What teachers said of one step."""

    scores: dict[str, str] = field(default_factory=dict)
    """Call id → packed logprobs."""
    out: dict[str, str] = field(default_factory=dict)
    """Call id → why it has none."""
    hints: dict[str, str] = field(default_factory=dict)
    """Rollout id → what its teacher was told."""


class Distillation:
    """Edits the batches of one run (:class:`agentlightning.specs.BatchEdit`)."""

    def __init__(self, settings: DistillSection, config: Any, recipe: Recipe, plugins: Any) -> None:
        self.settings, self.recipe = settings, recipe
        self._config, self._plugins = config, plugins
        self._policies = {name: Path(one.path) for name, one in config.served.trained.items()}
        self._chosen = self._teachers()
        self._hint: Hint | None = self._hint_function()
        self._teacher: dict[str, Teacher] = {}
        """Policy → its teacher."""
        self._tokenizers: dict[str, Renders] = {}
        """Policy → what renders its prompts, in a run with hints."""
        self._context: Context | None = None

    @asynccontextmanager
    async def open(self, context: Context) -> AsyncIterator[None]:
        """Open the teachers, and refuse those that read other ids than their policies."""
        self._context = context
        made: dict[str, Teacher] = {}
        for policy, given in self._chosen.items():
            key = str(given) if isinstance(given, Path) else given.model_dump_json()
            if key not in made:
                made[key] = self._make(given)
            self._teacher[policy] = made[key]
        await check_unchanged(context, self._told())
        try:
            for policy, teacher in self._teacher.items():
                await teacher.open(self._policies[policy])
                context.say(f"distill: {teacher} teaches policy {policy!r} ({self.settings.divergence})")
                if self._hint is not None:
                    self._tokenizers[policy] = _tokenizer(self._policies[policy])
            yield
        finally:
            for one in made.values():
                await one.close()

    async def edit(self, step: int, batch: Batch) -> Batch:
        """Have the rows of a step scored, write the link, and return the batch with the advantages."""
        assert self._context is not None
        told = Told()
        records = await self._records(batch) if self._hint is not None else {}
        for policy, teacher in self._teacher.items():
            rows = [row for row in batch.rows if row.policy == policy]
            asked = self._asked(rows, teacher, records, told)
            answers = await self._answers(teacher, [row for row, _ in asked])
            for (row, spans), answer in zip(asked, answers, strict=True):
                for call_id, start, end in spans:
                    self._tell(told, call_id, answer, row, start, end)
        body = {
            "settings": self._told(),
            "scores": told.scores,
            "left_out": told.out,
            "hints": told.hints,
        }
        await self._context.journal.entry("edit", f"{step}/{NAME}", body)
        return edited(batch, self.recipe, body)

    def _told(self) -> dict[str, Any]:
        """Return the settings as the links of the run hold them."""
        return {
            "coefficient": self.settings.coefficient,
            "divergence": self.settings.divergence,
            "beta": 0.5 if self.settings.beta is None else self.settings.beta,
            "teachers": {policy: str(one) for policy, one in self._teacher.items()},
            "hint": self._hint and getattr(self._hint, "__qualname__", type(self._hint).__name__),
        }

    # ------------------------------------------------------------------------------------ what is asked
    def _asked(
        self, rows: Sequence[Row], teacher: Teacher, records: Mapping[str, Record], told: Told
    ) -> list[tuple[Row, list[tuple[str, int, int]]]]:
        """Return the rows that a teacher scores, each with its calls and where their responses are in it."""
        calls = {call.call_id: call for record in records.values() for call in record.calls}
        asked: list[tuple[Row, list[tuple[str, int, int]]]] = []
        for row in rows:
            spans: list[tuple[str, int, int]] = []
            for one in row.segments:
                if not one.trained:
                    continue
                if why := teacher.refuses(row, one):
                    told.out[one.call_id] = why
                elif self._hint is None:
                    spans.append((one.call_id, one.start, one.end))
                else:
                    shown = self._shown(row, calls[one.call_id], records, told)
                    if isinstance(shown, str):
                        told.out[one.call_id] = shown
                    else:
                        n = len(shown.token_ids)
                        asked.append((shown, [(one.call_id, n - (one.end - one.start), n)]))
            if spans:
                asked.append((row, spans))
        return asked

    def _shown(self, row: Row, call: Call, records: Mapping[str, Record], told: Told) -> Row | str:
        """Return the row of one call with its rollout's hint, or why there is none."""
        assert self._hint is not None
        record = records[row.rollout_id]
        if row.rollout_id not in told.hints:
            group = [
                one
                for one in records.values()
                if one.rollout.group_id is not None and one.rollout.group_id == record.rollout.group_id
            ]
            text, why = hint_of(self._hint, record, group or [record])
            if why:
                return why
            told.hints[row.rollout_id] = text
        return hinted_row(row, call, told.hints[row.rollout_id], self._tokenizers[row.policy])

    async def _answers(self, teacher: Teacher, rows: Sequence[Row]) -> list[Answer]:
        return await teacher.score(rows) if rows else []

    def _tell(self, told: Told, call_id: str, answer: Answer, row: Row, start: int, end: int) -> None:
        """Enter an answer for one call: its logprobs if all of them are ones."""
        if isinstance(answer, str):
            told.out[call_id] = answer
        elif len(answer) != len(row.token_ids):
            told.out[call_id] = WRONG_LENGTH
        elif not all(math.isfinite(one) and one <= ROUNDING for one in answer[start:end]):
            told.out[call_id] = NOT_FINITE
        else:
            told.scores[call_id] = pack(answer[start:end])

    async def _records(self, batch: Batch) -> dict[str, Record]:
        """Return the records of the step's rollouts, which hints are made of, in pages."""
        assert self._context is not None
        ids = [ledger.rollout_id for ledger in batch.ledgers]
        found: dict[str, Record] = {}
        for at in range(0, len(ids), RECORD_PAGE):
            page = await self._context.store.records(ids[at : at + RECORD_PAGE])
            found |= {record.rollout.rollout_id: record for record in page}
        return found

    # ------------------------------------------------------------------------------------ who teaches
    def _teachers(self) -> dict[str, Path | EndpointSection]:
        """Return policy → the folder or endpoint of its teacher."""
        given = self.settings.teachers
        if unknown := sorted({*given} - {*self._policies}):
            raise ConfigError(
                f"distill.teachers: {unknown[0]!r} is no policy that this run trains; it trains "
                f"{', '.join(self._policies)}"
            )
        if given and (without := sorted({*self._policies} - {*given})):
            raise ConfigError(
                f"distill.teachers: policy {without[0]!r} is trained and has no teacher; name one, or "
                "freeze it"
            )
        chosen = given or dict.fromkeys(self._policies, self.settings.teacher)
        return {policy: self._place(policy, one) for policy, one in chosen.items() if one is not None}

    def _place(self, policy: str, given: str | EndpointSection) -> Path | EndpointSection:
        if isinstance(given, EndpointSection):
            if self.recipe.temperature != 1.0:
                raise ConfigError(
                    f"distill.teacher: an endpoint gives logprobs at temperature 1, and recipe.temperature "
                    f"is {self.recipe.temperature:g}; set it to 1, or give the teacher as a folder"
                )
            return given
        if given == SELF:
            return self._policies[policy]
        folder: Path = self._config.path(given)
        if not folder.is_dir():
            from agentlightning.train.policies import fetch_pretrained

            if (fetched := fetch_pretrained(given, self._plugins)) is None:
                raise ConfigError(
                    f"distill.teacher: {given!r} is no folder ({folder}) and no pretrained policy"
                )
            folder = fetched
        if self.settings.hint is None and folder.resolve() == self._policies[policy].resolve():
            raise ConfigError(
                f"distill.teacher: {folder} is the folder of the policy itself: a policy learns nothing from "
                "itself; give it a hint, which the agent does not see, or name another teacher"
            )
        return folder

    def _make(self, given: Path | EndpointSection) -> Teacher:
        if isinstance(given, EndpointSection):
            return EndpointTeacher(given, self.settings.tries)
        drivers = self._plugins.drivers
        own = drivers.get(self._config.backend.driver)
        able = [spec for spec in (own, *drivers.values()) if spec is not None and spec.inspect is not None]
        if not able:
            raise ConfigError("distill.teacher: no installed driver can score a folder; install agl-local")
        assert able[0].inspect is not None
        return FolderTeacher(given, able[0].inspect(given))

    def _hint_function(self) -> Hint | None:
        given: Any = self.settings.hint
        if isinstance(given, str):
            from agentlightning.train.configured import import_target

            given = import_target(given, "distill.hint")
        if given is not None and not callable(given):
            raise ConfigError(f"distill.hint: {given!r} is no function (task, rollout, group) -> str")
        if given is not None:
            try:
                inspect.signature(given).bind(None, None, None)
            except TypeError as error:
                raise ConfigError(
                    f"distill.hint: {given!r} cannot be called with (task, rollout, group): {error}"
                ) from None
            if inspect.iscoroutinefunction(given):
                raise ConfigError(f"distill.hint: {given!r} is a coroutine function; give a plain one")
        found: Hint | None = given
        return found


class Untaught:
    """The edit of a run that resumes without a teacher: there must have been none (`BatchEdit`)."""

    @asynccontextmanager
    async def open(self, context: Context) -> AsyncIterator[None]:
        """Refuse a run that a teacher has trained."""
        await check_unchanged(context, {})
        yield

    async def edit(self, step: int, batch: Batch) -> Batch:
        """Return the batch as it is."""
        return batch


async def check_unchanged(context: Context, now: Mapping[str, Any]) -> None:
    """Raise :class:`ConfigError` if a teacher has trained the run by other settings than ``now``, which are
    empty without one. The address of an endpoint may change, its model may not.
    """
    then = await _first_settings(context)
    if then is None:
        return
    if not now:
        raise ConfigError(
            f"{NAME}: a teacher trained this run, and none is set now: use what it began with, or begin "
            "another run"
        )
    before, after = _compared(then), _compared(now)
    for key in {**before, **after}:
        if (was := before.get(key)) != (given := after.get(key)):
            raise ConfigError(
                f"{NAME}.{key} was {was!r} when the run began and is {given!r}: use what it began with, or "
                "begin another run"
            )


async def _first_settings(context: Context) -> dict[str, Any] | None:
    async for page in pages(context.store.query_links, context.run_id):
        for link in page:
            if link.kind == "edit" and link.name.endswith(f"/{NAME}"):
                found: dict[str, Any] = link.body["settings"]
                return found
    return None


def _compared(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by dotted names, teachers without their addresses."""
    teachers = {f"teachers.{policy}": one.partition(AT)[0] for policy, one in settings["teachers"].items()}
    return {**{name: value for name, value in settings.items() if name != "teachers"}, **teachers}


def _tokenizer(policy: Path) -> Renders:
    """Return what renders the prompts of the policy, as its engine does."""
    from agl_local.text.tokenizer import ChatTokenizer

    try:
        found: Any = ChatTokenizer.load(policy)
    except (OSError, ValueError) as error:
        raise ConfigError(f"distill.hint: the chat template of {policy} cannot be read: {error}") from error
    tokenizer: Renders = found
    return tokenizer
