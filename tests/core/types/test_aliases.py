"""Former names: each loads, names its successor once, and changes no record."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import agentlightning as agl
from agentlightning import types
from agentlightning.credit.fingerprints.fingerprint import terms_digest
from agentlightning.recipes import FIELDS
from agentlightning.specs import DriverSpec, RecipeSpec
from agentlightning.types import Ledger, Recipe, UsageError, aliases
from agentlightning.types.aliases import StepMetrics, renamed

VALUES = {
    "filter_zero_std_groups": True,
    "loss_aggregation": "token",
    "loss_divisor": 2.0,
    "ratio_level": "sequence",
    "max_staleness": 3,
}


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aliases, "_SAID", set())


def warned(make: Callable[[], Any]) -> tuple[Any, list[str]]:
    """The result of ``make``, done twice, and the warnings of both times."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        make()
        found = make()
    return found, [str(one.message) for one in seen if one.category is FutureWarning]


@pytest.mark.parametrize(("former", "present"), aliases.RECIPE.items())
def test_a_recipes_former_fields_load_and_name_their_successor_once(former: str, present: str) -> None:
    wanted = VALUES[present]
    for make in (lambda: agl.GRPO(**{former: wanted}), lambda: Recipe(**{"name": "r", former: wanted})):
        aliases._SAID.clear()
        found, said = warned(make)
        assert getattr(found, present) == wanted
        assert len(said) == 1 and repr(former) in said[0] and repr(present) in said[0]
    aliases._SAID.clear()
    assert warned(lambda: getattr(Recipe(name="r", **{present: wanted}), former)) == (wanted, [said[0]])
    assert present in FIELDS and former not in FIELDS


def test_both_names_of_one_field_are_refused() -> None:
    with pytest.raises(UsageError, match="'normalise' is the former name of 'loss_aggregation'"):
        agl.GRPO(normalise="token", loss_aggregation="call")


def test_a_record_of_an_earlier_version_is_read_without_a_warning() -> None:
    record = {"name": "r", "normalise": "call", "staleness": 2, "extra": {}}
    found, said = warned(lambda: Recipe.from_record(record))
    assert (found.loss_aggregation, found.max_staleness, said) == ("call", 2, [])
    with pytest.raises(msgspec.ValidationError):
        Recipe.from_record({"name": "r", "normalise": "row"})


def test_the_digest_of_a_recipe_is_that_of_its_first_names() -> None:
    recipe = Recipe(name="r", **VALUES)
    assert terms_digest(recipe, {}) == "ef6a412491ed93025632292c1e7e328e"


@pytest.mark.parametrize(("former", "present"), aliases.DRIVER_SPEC.items())
def test_a_drivers_former_fields_load(former: str, present: str) -> None:
    values: dict[str, Any] = {
        "supported_fields": frozenset({"normalise", "kl"}), "unsupported_fields": {"constant": "no"},
        "environment_info": dict, "multi_policy": True,
    }  # fmt: skip
    spec, said = warned(lambda: DriverSpec("d", Recipe, **{former: values[present]}))  # type: ignore[arg-type]
    assert repr(present) in said[0] and len({*said}) == len(said)
    assert getattr(spec, former) == getattr(spec, present) != getattr(DriverSpec("d", Recipe), present)  # type: ignore[arg-type]
    if present == "supported_fields":
        assert spec.supported_fields == {"loss_aggregation", "kl"}


def test_the_paper_of_a_recipe_is_what_it_is_about() -> None:
    spec, said = warned(lambda: RecipeSpec("r", agl.GRPO, paper="arXiv 1"))  # type: ignore[call-arg]
    assert spec.about == "arXiv 1" and len(said) == 1


@pytest.mark.parametrize(("former", "present"), aliases.TYPES.items())
def test_former_types_are_the_present_ones(former: str, present: str) -> None:
    found, said = warned(lambda: getattr(types, former))
    assert found is getattr(types, present) is getattr(agl, former) and len(said) == 1


def test_a_ledger_answers_to_its_former_fields() -> None:
    ledger = Ledger(rollout_id="r", left_out={"stale": 1}, merge_failures={"branch": 2})
    assert warned(lambda: (ledger.out, ledger.breaks))[0] == ({"stale": 1}, {"branch": 2})
    with pytest.raises(AttributeError, match="'Ledger' object has no attribute 'lost'"):
        ledger.lost  # noqa: B018


def test_metrics_are_found_under_either_name() -> None:
    for former, present in aliases.METRICS.items():
        tail = "x" if former.endswith("/") else ""
        old, new = former + tail, present + tail
        for held, asked in ((new, old), (old, new), (new, new)):
            metrics = StepMetrics({held: 2.0})
            assert metrics[asked] == metrics.get(asked) == 2.0 and asked in metrics
            assert msgspec.to_builtins(metrics) == {held: 2.0}
    assert StepMetrics().get("rows", 1.0) == 1.0 and "out/stale" not in StepMetrics()
    with pytest.raises(KeyError, match="rows"):
        StepMetrics()["rows"]


def test_the_first_spelling_is_the_stored_one() -> None:
    assert aliases.stored_name("zero-std", aliases.LEFT_OUT) == "zero-spread"
    assert aliases.stored_name("loss_aggregation", aliases.RECIPE) == "normalise"
    assert aliases.stored_name("kl", aliases.RECIPE) == "kl"
    assert renamed({"ahead": 1, "steps": 2}, aliases.TRAINING, "training", quiet=True) == {
        "async_steps": 1,
        "steps": 2,
    }


def test_options_of_drivers_have_former_names() -> None:
    local = pytest.importorskip("agl_local.options")
    values = {"max_grad_norm": 2.0, "share_prefixes": False}
    for former, present in aliases.DRIVER_OPTIONS.items():
        aliases._SAID.clear()
        value = values.get(present, 3)
        found, said = warned(lambda former=former, value=value: local.read_options({former: value}))
        assert getattr(found, present) == value and len(said) == 1 and repr(present) in said[0]
