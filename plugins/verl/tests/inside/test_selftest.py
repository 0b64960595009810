"""verl's doors are where we knock: the self-test passes, names what is missing, and our parts are found."""

from __future__ import annotations

import pytest

pytest.importorskip("verl", reason="verl has an environment of its own: make test-verl-inside")

from agl_verl.inside import selftest
from agl_verl.inside.selftest import TESTED, changed


def test_this_verl_is_the_one_that_was_tested() -> None:
    assert changed() == []


@pytest.mark.parametrize(
    ("path", "parameters", "wanted"),
    [
        ("verl.no_such_module:thing", (), "verl.no_such_module:thing: ModuleNotFoundError"),
        ("verl.trainer.main_ppo:NoSuchRunner", (), "verl.trainer.main_ppo:NoSuchRunner: AttributeError"),
        ("verl.trainer.main_ppo:run_ppo", ("config", "no_such"), "run_ppo takes no 'no_such'"),
    ],
)
def test_what_has_changed_is_named(
    path: str, parameters: tuple[str, ...], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "TOUCHED", {path: parameters})
    (problem,) = changed()
    assert wanted in problem


def test_another_version_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "version", lambda name: "0.0.0")
    assert changed() == [f"verl is 0.0.0; {TESTED} was tested: pip install 'verl=={TESTED}'"]
