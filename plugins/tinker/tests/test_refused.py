"""What the API cannot carry out is refused when a run is loaded, each with its reason."""

from __future__ import annotations

from typing import Any

import pytest

from agentlightning.types import Recipe
from agl_tinker.options import Options, read_options
from agl_tinker.supported_fields import SUPPORTED_FIELDS, UNSUPPORTED_FIELDS, Native, native, refuse

COMPUTED, NATIVE = Options(base_model="m"), Options(base_model="m", loss="native")
OWN: dict[str, Any] = {"correction": None, "off_policy_cap": None}


def test_every_field_of_a_recipe_is_known() -> None:
    fields = set(Recipe.__struct_fields__) - {"name"}
    assert SUPPORTED_FIELDS | UNSUPPORTED_FIELDS.keys() == fields
    assert not SUPPORTED_FIELDS & UNSUPPORTED_FIELDS.keys()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"critic": True}, "no value model"),
        ({"entropy": 0.01}, "not distributions"),
        ({"temperature": 0.7}, "at temperature 1"),
        ({"top_p": 0.9}, "truncated"),
        ({"top_k": 5}, "truncated"),
        ({"loss": "dpo"}, "'dpo' is not one of"),
        ({"epochs": 0}, "at least 1"),
        ({"kl": -1.0}, "not negative"),
        ({"loss": "cispo", "clip_ratio_c": 3.0}, "would be ignored"),
        ({"loss": "reinforce", "clip_low": 0.1}, "has no ratio, so clip_low would be ignored"),
    ],
)
def test_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        refuse(Recipe(name="r", **fields), COMPUTED)


@pytest.mark.parametrize(
    "fields", [{"kl": 0.1}, {"ratio_level": "sequence"}, {"clip_ratio_c": 3.0}, {"epochs": 2}]
)
def test_a_computed_loss_may_be_any(fields: dict[str, Any]) -> None:
    refuse(Recipe(name="r", **fields), COMPUTED)


def test_losses_of_the_server() -> None:
    bounds = {"clip_low_threshold": pytest.approx(0.8), "clip_high_threshold": pytest.approx(1.3)}
    assert native(Recipe(name="r", clip_high=0.3, **OWN)) == Native("ppo", bounds, "advantages")  # type: ignore[arg-type]
    assert native(Recipe(name="r", loss="cispo", clip_high=0.3, **OWN)).loss == "cispo"
    assert native(Recipe(name="r", loss="reinforce", **OWN)) == Native("cross_entropy", {}, "weights")


@pytest.mark.parametrize(
    "fields", [{"kl": 0.1}, {"ratio_level": "sequence"}, {"clip_ratio_c": 3.0}, {"importance_cap": 2.0}]
)
def test_a_server_has_no_such_loss(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"no loss of the Tinker API carries out {next(iter(fields))}"):
        refuse(Recipe(name="r", **OWN, **fields), NATIVE)


def test_options() -> None:
    assert read_options({"base_model": "m", "lr": 1e-3}).lr == 1e-3
    with pytest.raises(ValueError, match="base_model"):
        read_options({})
    with pytest.raises(ValueError, match=r"'base_modle'.*'base_model'"):
        read_options({"base_modle": "m"})
    with pytest.raises(ValueError, match="rank must be at least 1"):
        read_options({"base_model": "m", "rank": 0})
    with pytest.raises(ValueError, match=r"no option 'lora_rank'\. Did you mean 'rank'"):
        read_options({"base_model": "m", "lora_rank": 8})
    with pytest.raises(ValueError, match=r"no option 'device'\. Known here: base_model"):
        read_options({"base_model": "m", "device": "cuda"})
    with pytest.raises(ValueError, match=r"'dro'.*takes computed, native"):
        read_options({"base_model": "m", "loss": "dro"})
