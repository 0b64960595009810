"""The profile for a GPU: composed and checked as far as a machine without one can, and without LangGraph."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from agentlightning.credit.checks import check_supported_fields
from agentlightning.recipes import get
from agentlightning.train.run_file import load_config
from agentlightning.types.work import PolicyFolder
from agl_local.option_values import OptionError
from agl_local.options import pick_device, read_options
from agl_local.serving import LocalServer
from agl_local.supported_fields import SUPPORTED_FIELDS
from router import datasets

EXAMPLE = Path(datasets.__file__).parent


def sections(name: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A profile's sections as plain data."""
    config = load_config(EXAMPLE / f"{name}.yaml", changes)
    return {
        part: copy.deepcopy(vars(getattr(config, part)))
        for part in ("agent", "training", "environment", "backend")
    }


@pytest.mark.parametrize(("profile", "driver"), [("gpu", "local"), ("verl_1gpu", "verl")])
def test_a_profile_has_the_laptops_agent_tasks_recipe_and_steps(profile: str, driver: str) -> None:
    cpu, gpu = sections("cpu"), sections(profile)
    named = cpu["agent"].pop("name"), gpu["agent"].pop("name")
    assert named == ("router", f"router-{profile.replace('_', '-')}")
    assert cpu["agent"] == gpu["agent"]
    for section, part in (
        ("environment", "train"),
        ("environment", "val"),
        ("training", "algorithm"),
        ("training", "recipe"),
        ("training", "steps"),
        ("training", "batch_size"),
    ):
        assert cpu[section][part] == gpu[section][part], part
    assert gpu["backend"]["driver"] == driver and gpu["backend"]["options"]["device"] == "cuda"


@pytest.mark.slow
def test_the_local_driver_takes_its_profile() -> None:
    gpu = sections("gpu")
    options = read_options(gpu["backend"]["options"])
    assert (options.device, options.dtype) == ("cuda", "bfloat16")
    training = gpu["training"]
    check_supported_fields(get(training["algorithm"], **training["recipe"]), "local", SUPPORTED_FIELDS)


@pytest.mark.slow
def test_one_line_moves_the_laptops_profile_to_a_gpu() -> None:
    cpu, moved = sections("cpu"), sections("cpu", {"backend.options.device": "cuda"})
    assert moved["backend"]["options"].pop("device") == "cuda"
    assert moved == cpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
async def test_a_machine_without_a_gpu_refuses_it_by_name(llama: Path) -> None:
    with pytest.raises(OptionError, match="device 'cuda' cannot be used"):
        pick_device("cuda")
    with pytest.raises(OptionError, match="device 'cuda' cannot be used"):
        await LocalServer(PolicyFolder(llama, options={"device": "cuda"})).start()
