"""The operations of a store in tables are those that the interface declares: each once, as it says."""

from __future__ import annotations

import inspect

import pytest

from agentlightning.store.base import OPERATIONS, Store
from agentlightning.store.sql import store as made
from agentlightning.store.sqlite.store import SQLiteStore

COMPOSED = {"enqueue_rollout", "dequeue_rollout", "add_span"}
"""Operations that the interface makes of others."""


def operation_of(name: str) -> object:
    """Return the function over the tables, where it is defined."""
    (found,) = {vars(module)[name] for module in made._MODULES if name in vars(module)}
    return found


def test_every_operation_is_implemented() -> None:
    assert {name for name in OPERATIONS if name in vars(made.SQLStore)} == OPERATIONS - COMPOSED


@pytest.mark.parametrize("name", sorted(OPERATIONS - COMPOSED))
def test_an_operation_takes_what_the_interface_declares(name: str) -> None:
    declared = dict(inspect.signature(getattr(Store, name)).parameters)
    declared.pop("self")
    operation = operation_of(name)
    written = inspect.signature(operation, follow_wrapped=True)  # type: ignore[arg-type]
    takes = dict(written.parameters)
    takes.pop("store")
    takes.pop("request_id", None)
    declared.pop("request_id", None)
    rest = any(one.kind is one.VAR_KEYWORD for one in takes.values())
    named = {name for name, one in takes.items() if one.kind is not one.VAR_KEYWORD}
    assert named == set(declared) or (rest and named < set(declared))
    types = inspect.get_annotations(getattr(Store, name))
    assert {name: one.annotation for name, one in takes.items() if name in named} == {
        name: types[name] for name in named
    } or name == "query_rollouts"  # which names the type of its order
    assert written.return_annotation == types["return"]


def test_a_store_is_few_classes() -> None:
    assert [one.__name__ for one in SQLiteStore.__mro__] == [
        *("SQLiteStore", "SQLStore", "Tables", "Store", "object"),
    ]
