"""Plugins: loading, names, errors, and that every hook is documented, tested and used."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Generator
from pathlib import Path

import pytest

from agentlightning import hookspecs
from agentlightning.hookspecs import hookimpl
from agentlightning.plugins import manager
from agentlightning.plugins.manager import PluginError, build, pick
from agentlightning.plugins.stores import open_store
from agentlightning.specs import RecipeSpec, StoreSpec
from agentlightning.store import SQLiteStore, StoreError
from agentlightning.types import Evaluation, Recipe

HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("agl_"))
DOCS = Path(__file__).parents[3] / "docs" / "contributing" / "hooks.md"


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_has_a_contract_and_a_row_in_the_docs(name: str) -> None:
    assert inspect.getdoc(getattr(hookspecs, name))
    assert f"`{name}(" in DOCS.read_text()


def test_builtins_register_their_names() -> None:
    loaded = build(discover=False)
    assert {"grpo", "rloo"} <= set(loaded.recipes)
    assert {"broadcast", "last", "per_call", "discounted", "per_agent"} <= set(
        loaded.table("agl_credit_rules")
    )
    assert {"group", "rloo", "batch", "none"} <= set(loaded.table("agl_baselines"))
    assert {"train", "plugins"} == set(loaded.commands)
    assert {"files", "lines"} <= set(loaded.trackers)
    assert {"sqlite"} == set(loaded.stores) and "rl" in loaded.algorithms


class Extra:
    @hookimpl
    def agl_recipes(self) -> list[RecipeSpec]:
        return [RecipeSpec("mine", lambda **kw: Recipe(name="mine", **kw))]


def test_plugins_add_names() -> None:
    assert (
        pick(build([Extra()], discover=False).recipes, "recipe", "mine").factory(group_size=2).group_size == 2
    )


class Shelf:
    @hookimpl
    def agl_stores(self) -> list[StoreSpec]:
        return [StoreSpec("shelf", lambda url: f"the store of {url}")]


async def test_a_store_is_opened_by_the_scheme_a_plugin_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    with_shelf = build([Shelf()], discover=False)
    assert open_store("shelf://x", plugins=with_shelf) == "the store of shelf://x"
    monkeypatch.setattr(manager, "load", lambda: with_shelf)
    assert open_store("shelf://y") == "the store of shelf://y"
    with pytest.raises(StoreError, match=r"registered for cup://; .* shelf://, sqlite://"):
        open_store("cup://user:secret@x")
    monkeypatch.undo()
    with pytest.raises(StoreError, match="registered for shelf://"):
        open_store("shelf://z")
    store = open_store("sqlite:///:memory:", plugins=with_shelf)
    assert isinstance(store, SQLiteStore) and store.db.path is None
    await store.close()


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(PluginError, match=r"no recipe is called 'nope'\. Known here: .*grpo"):
        pick(build(discover=False).recipes, "recipe", "nope")


@pytest.mark.parametrize(
    ("kind", "name", "folders"),
    [
        ("adapter", "langgraph", './core ./adapters/langchain "./adapters/langgraph[instruments]"'),
        ("adapter", "crewai", './core "./adapters/crewai[instruments]"'),
        ("driver", "local", "./core ./plugins/local"),
        ("driver", "verl", "./core ./plugins/verl"),
    ],
)
def test_one_of_ours_that_is_missing_names_its_install_line(kind: str, name: str, folders: str) -> None:
    with pytest.raises(PluginError) as refused:
        pick(getattr(build(discover=False), f"{kind}s"), kind, name)
    said = str(refused.value)
    assert f"the {kind} {name!r} is not installed" in said
    assert said.endswith(f"pip install -c constraints.txt {folders}")


def test_a_near_miss_of_one_that_is_not_installed_is_named_too() -> None:
    with pytest.raises(PluginError, match=r"no adapter is called 'langraph'\. Did you mean 'langgraph'\?"):
        pick(build(discover=False).adapters, "adapter", "langraph")


def test_the_same_name_twice_names_both() -> None:
    class Again(Extra):
        pass

    with pytest.raises(PluginError, match="'mine' is registered by both"):
        build([Extra(), Again()], discover=False)


def test_unknown_hook_is_refused() -> None:
    class Wrong:
        @hookimpl
        def agl_no_such_hook(self) -> None: ...

    with pytest.raises(Exception, match="agl_no_such_hook"):
        build([Wrong()], discover=False)


def test_moment_errors_are_counted_and_the_others_still_hear(caplog: pytest.LogCaptureFixture) -> None:
    heard = []

    class Bad:
        @hookimpl
        def agl_evaluated(self) -> None:
            raise RuntimeError("boom")

    class Good:
        @hookimpl
        def agl_evaluated(self, evaluation: Evaluation) -> None:
            heard.append(evaluation.name)

    loaded = build([Bad(), Good()], discover=False)
    with caplog.at_level(logging.ERROR):
        loaded.ask("agl_evaluated", evaluation=Evaluation(name="x", n=1, reward=0.0, ci=(0, 0)))
    assert heard == ["x"] and loaded.errors == {"agl_evaluated": 1} and "agl_evaluated failed" in caplog.text


def test_a_wrapper_is_refused_by_name() -> None:
    class Wrapper:
        @hookimpl(wrapper=True)
        def agl_end_training(
            self, step: int, evaluation: Evaluation
        ) -> Generator[None, list[str], list[str]]:
            return (yield)

    with pytest.raises(PluginError, match="its hook agl_end_training is a wrapper"):
        build([Wrapper()], discover=False)
    with pytest.raises(PluginError, match="its hook agl_end_training is a wrapper"):
        build(discover=False).with_listeners([Wrapper()])


def test_registration_hooks_run_once() -> None:
    runs = []

    class Counted:
        @hookimpl
        def agl_recipes(self) -> list[RecipeSpec]:
            runs.append("agl_recipes")
            return []

    loaded = build([Counted()], discover=False)
    heard = loaded.with_listeners([Counted()])
    assert runs == ["agl_recipes"] and heard.recipes is loaded.recipes


def test_trace_prints_the_call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("AGL_TRACE_HOOKS", "1")
    build(discover=False).ask("agl_run_finished", summary={})
    assert "agl hook agl_run_finished(summary)" in capsys.readouterr().err


def test_a_broken_entry_point_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name, value = "bad", "bad.module"

        def load(self) -> object:
            raise ImportError("no torch here")

    monkeypatch.delenv("AGL_PLUGINS", raising=False)
    monkeypatch.setattr(manager, "entry_points", lambda group: [Point()])
    assert build().broken == {"bad": "ImportError: no torch here"}
    monkeypatch.setenv("AGL_PLUGINS", "")
    assert build().broken == {}


# ------------------------------------------------------------------------------------- hooks of plugins
class Zoo:
    """A plugin whose hook others implement."""

    @staticmethod
    @hookspecs.hookspec
    def agl_animals() -> list[RecipeSpec]:  # type: ignore[empty-body]
        """Animals."""

    @hookimpl
    def agl_hookspecs(self) -> list[object]:
        return [Zoo]


class Farm:
    def __init__(self, *names: str) -> None:
        self.names, self.asked = names, 0

    @hookimpl(optionalhook=True)
    def agl_animals(self) -> list[RecipeSpec]:
        self.asked += 1
        return [RecipeSpec(name, Recipe) for name in self.names]


def test_a_hook_of_a_plugin_is_implemented_by_strangers_with_and_without_it() -> None:
    farm = Farm("cow")
    loaded = build([farm, Zoo()], discover=False)
    assert list(loaded.table("agl_animals")) == list(loaded.table("agl_animals")) == ["cow"]
    assert list(loaded.with_listeners([]).table("agl_animals")) == ["cow"] and farm.asked == 1
    assert loaded.manager.hook.agl_animals.spec is not None
    build([farm], discover=False)
    assert build(discover=False).table("agl_animals") == {}


def test_a_hook_of_a_plugin_keeps_the_rules_of_all_hooks() -> None:
    with pytest.raises(PluginError, match="agl_animals: 'cow' is registered by both"):
        build([Zoo(), Farm("cow"), Farm("cow")], discover=False).table("agl_animals")

    class Wrapper:
        @hookimpl(wrapper=True)
        def agl_animals(self) -> Generator[None, list[str], list[str]]:
            return (yield)

    with pytest.raises(PluginError, match="its hook agl_animals is a wrapper"):
        build([Zoo(), Wrapper()], discover=False)

    class Required:
        @hookimpl
        def agl_animals(self) -> list[RecipeSpec]:
            return []

    build([Zoo(), Required()], discover=False)
    with pytest.raises(Exception, match="unknown hook 'agl_animals'"):
        build([Required()], discover=False)

    class Again(Zoo):
        pass

    with pytest.raises(PluginError, match=r"its own hooks: .*agl_animals"):
        build([Zoo(), Again()], discover=False)
