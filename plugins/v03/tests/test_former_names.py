"""Every name and module of v0.3 resolves, or is refused by name with what to use instead."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agentlightning as agl
import agl_v03.plugin
from agentlightning.plugins.suite import checkout
from agl_v03.former_names import RefusedName, former_name, table

NAMES = [
    *((module, name) for module, names in table()["modules"].items() for name in names.split()),
    *(("", name) for name in table()["names"] if "." not in name),
]


@pytest.mark.parametrize(
    ("module", "name"),
    [pytest.param(*one, marks=pytest.mark.plugins) if one[1] == "VERL" else one for one in NAMES],
    ids=lambda part: part or "agl",
)
def test_a_name_resolves_in_its_module(module: str, name: str) -> None:
    found = importlib.import_module(f"agentlightning.{module}" if module else "agentlightning")
    assert getattr(found, name) is not None
    scope: dict[str, object] = {}
    exec(f"from {found.__name__} import {name}", scope)
    assert scope[name] is getattr(found, name)


@pytest.mark.parametrize("dotted", table()["refused"])
def test_a_refused_name_says_its_successor(dotted: str) -> None:
    module, _, name = dotted.rpartition(".")
    found = importlib.import_module(f"agentlightning.{module}" if module else "agentlightning")
    with pytest.raises(RefusedName) as refused:
        getattr(found, name)
    assert table()["refused"][dotted] in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(ImportError, match=r"of Agent Lightning 0\.3 is not here"):
        exec(f"from {found.__name__} import {name}")


@pytest.mark.parametrize("dotted", table()["refused_v1"])
def test_a_name_of_10_is_refused_as_one_of_10(dotted: str) -> None:
    module, _, name = dotted.rpartition(".")
    with pytest.raises(ImportError, match=r"of Agent Lightning 1\.0 is not here: ") as refused:
        if name[0].isupper():
            exec(f"from agentlightning.{module} import {name}")
        else:
            importlib.import_module(f"agentlightning.{dotted}")
    assert table()["refused_v1"][dotted] in str(refused.value) and "\n" not in str(refused.value)


def test_verl_of_03_says_what_trains() -> None:
    with pytest.raises(
        ImportError, match=r"verl\.AgentModeDaemon of Agent Lightning 0\.3 is not here: use agl\.VERL"
    ):
        exec("from agentlightning.verl import AgentModeDaemon")
    done = subprocess.run([sys.executable, "-m", "agentlightning.verl"], capture_output=True, text=True)
    assert (
        done.returncode and "of Agent Lightning 0.3 is not here: use `agl train --config FILE`" in done.stderr
    )


def test_reward_is_a_decorator_and_its_module() -> None:
    """Whichever was imported first."""
    code = """
from agentlightning.reward import reward as one
from agentlightning import reward as two
import agentlightning.emitter.reward
from agentlightning.emitter import reward as three
assert one(lambda: 2.0)() == two(lambda: 2.0)() == three(lambda: 2.0)() == 2.0  # outside a rollout too
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("module", table()["refused_modules"])
def test_a_refused_module_says_its_successor(module: str) -> None:
    with pytest.raises(ImportError, match=r"of Agent Lightning 0\.3 is not here"):
        importlib.import_module(f"agentlightning.{module}")


def test_a_name_that_never_was_is_an_attribute_error() -> None:
    for module in ("", "adapter", "store", "types", "semconv", "runner"):
        found = importlib.import_module(f"agentlightning.{module}" if module else "agentlightning")
        with pytest.raises(AttributeError, match="no attribute 'NeverWas'"):
            _ = found.NeverWas
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("agentlightning.never_was")
    with pytest.raises(AttributeError):
        former_name("adapter", "setup_logging")  # a name of the package, not of this module


def test_names_of_modules_are_the_objects_of_the_package() -> None:
    from agentlightning.adapter import TraceToMessages
    from agentlightning.litagent import LitAgent, llm_rollout
    from agentlightning.tracer import OtelTracer, trace

    assert (TraceToMessages, LitAgent, llm_rollout) == (agl.TraceToMessages, agl.LitAgent, agl.rollout)
    assert OtelTracer is agl.OtelTracer and agl.tracer.trace is trace
    assert agl.TaskInput is not None and agl.RolloutMode == agl.Mode


def test_nothing_of_v03_is_imported_before_it_is_used() -> None:
    code = "import sys, agentlightning; print([m for m in sys.modules if 'compat' in m or 'tomllib' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_core_knows_which_names_and_modules_come_with_the_plugin() -> None:
    """Without it an import is refused with the line that installs it."""
    known = {
        kind: {n for n, f in checkout()[kind].items() if f[-1] == "./plugins/v03"} for kind in checkout()
    }
    assert known["name"] == set(agl_v03.plugin.agl_names())
    core = Path(agl.__file__).parent
    modules = {name.partition(".")[0] for name in table()["modules"]}
    assert known["module"] == {name for name in modules if not [*core.glob(name), *core.glob(f"{name}.py")]}
    assert known["returned"] == {"Triplet", "Span"}


def test_an_import_without_the_plugin_names_the_line_that_installs_it() -> None:
    env = {**os.environ, "AGL_PLUGINS": ""}
    for line in ("from agentlightning import LightningStore", "import agentlightning.tracer.base"):
        done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, env=env)
        assert done.returncode
        folders = "./core ./plugins/trackers ./plugins/audit ./plugins/cluster ./plugins/v03"
        assert f"pip install -c constraints.txt {folders}" in done.stderr


def test_a_name_of_a_plugin_that_is_not_there_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(agl), "VERL", raising=False)  # another test may have found it
    for module in ("agentlightning.algorithm.verl", "agentlightning"):
        with pytest.raises(ImportError, match=r"VERL: it comes with agl-verl, .* \./core \./plugins/verl"):
            getattr(importlib.import_module(module), "VERL")  # noqa: B009
