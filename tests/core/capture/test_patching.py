from __future__ import annotations

import functools
from typing import Any

import wrapt

from agentlightning.capture.installation import Patch


class Base:
    def name(self) -> str:
        return "base"

    @staticmethod
    def plain(x: int) -> int:
        return x

    @classmethod
    def made(cls) -> str:
        return cls.__name__


class Child(Base):
    pass


def shout(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return f"<{wrapped(*args, **kwargs)}>"


def test_methods_of_every_kind_are_wrapped_and_restored() -> None:
    before = dict(vars(Base))
    patches = [Patch(Base, name, shout) for name in ("name", "plain", "made")]
    assert (Base().name(), Base.plain(1), Base().plain(1), Child.made()) == (
        "<base>",
        "<1>",
        "<1>",
        "<Child>",
    )
    for patch in patches:
        patch.undo()
    assert {n: vars(Base)[n] for n in ("name", "plain", "made")} == {
        n: before[n] for n in ("name", "plain", "made")
    }


def test_a_method_called_as_a_function_has_its_instance() -> None:
    seen: list[Any] = []

    def note(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append((instance, args))
        return wrapped(*args, **kwargs)

    patches = [Patch(Base, "name", note), Patch(Base, "plain", note)]
    base = Base()
    assert (vars(Base)["name"](base), Base.name(base), base.name(), Base.plain(3)) == ("base",) * 3 + (3,)
    for patch in patches:
        patch.undo()
    assert seen == [(base, ())] * 3 + [(None, (3,))]


def test_an_inherited_method_is_not_left_on_the_child() -> None:
    patch = Patch(Child, "name", shout)
    assert Child().name() == "<base>" and Base().name() == "base"
    patch.undo()
    assert "name" not in vars(Child)


def test_below_a_foreign_proxy_ours_is_taken_out() -> None:
    original = vars(Base)["name"]
    patch = Patch(Base, "name", shout)
    wrapt.wrap_function_wrapper(Base, "name", lambda w, i, a, k: "foreign " + w(*a, **k))
    foreign = vars(Base)["name"]
    try:
        assert Base().name() == "foreign <base>"
        patch.undo()
        assert vars(Base)["name"] is foreign and foreign.__wrapped__ is original
        assert Base().name() == "foreign base"
    finally:
        Base.name = original  # type: ignore[method-assign]


def test_below_a_foreign_closure_ours_goes_inert() -> None:
    original = vars(Base)["name"]
    patch = Patch(Base, "name", shout)
    ours = vars(Base)["name"]

    @functools.wraps(ours)
    def closure(self: Base) -> str:
        return "closed " + ours.__get__(self, Base)()

    try:
        Base.name = closure  # type: ignore[method-assign]
        assert Base().name() == "closed <base>"
        patch.undo()
        assert Base().name() == "closed base"
    finally:
        Base.name = original  # type: ignore[method-assign]


def test_undo_twice_does_nothing_more() -> None:
    original = vars(Base)["name"]
    patch = Patch(Base, "name", shout)
    patch.undo()
    patch.undo()
    assert vars(Base)["name"] is original
