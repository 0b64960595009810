"""Registers the recipe ``distill`` and its credit rule, the field ``distill`` of a run, and the edit of a
step's batch that it asks for, with how ``agl verify`` makes that edit again.
"""

from __future__ import annotations

from typing import Any

from agentlightning import specs
from agentlightning.hookspecs import hookimpl
from agentlightning.specs import lazily, lazy_type
from agentlightning.types import Recipe, Record
from agl_distill.names import NAME, RULE


@hookimpl
def agl_recipes() -> list[specs.RecipeSpec]:
    return [specs.RecipeSpec(NAME, lazily("agl_distill.recipe:distill"), "arXiv 2306.13649")]


def teacher(record: Record, recipe: Recipe) -> dict[str, float | None]:
    """Every call of a finished rollout gets 0, whatever it earned: its teacher gives its advantages."""
    return {call.call_id: 0.0 for call in record.calls}


teacher.credits_unrewarded = True  # type: ignore[attr-defined]


@hookimpl
def agl_credit_rules() -> list[specs.CreditRuleSpec]:
    return [specs.CreditRuleSpec(RULE, teacher)]


@hookimpl
def agl_sections() -> list[specs.SectionSpec]:
    return [specs.SectionSpec(NAME, "", lazy_type("agl_distill.settings:DistilledRun"))]


@hookimpl
def agl_batch_edits(config: Any, recipe: Recipe, plugins: Any) -> specs.BatchEdit | None:
    from agl_distill.distillation import distillation_of

    return distillation_of(config, recipe, plugins)


@hookimpl(optionalhook=True)
def agl_recorded_edits() -> list[Any]:
    from agl_audit.hookspecs import RecordedEditSpec

    return [RecordedEditSpec(NAME, lazily("agl_distill.edit:edited"))]
