"""Natural guesses are led to what is right, and the table of words names places that exist."""

from __future__ import annotations

import re
import tomllib
from importlib import resources

import pytest

from agentlightning.plugins.manager import load
from agentlightning.recipes import FIELDS
from agentlightning.train.config import fields
from agentlightning.types.base import vendor, words
from agl_local.options import Options
from tests.guess.guesses import Guess, asked, judged, listed, project

pytestmark = pytest.mark.plugins
TABLE = tomllib.loads((resources.files("agentlightning.types") / "words.toml").read_text(encoding="utf-8"))


def keys() -> set[str]:
    """Every key of a run's file, with those of the recipe and of the local driver."""
    of_run = {f"{section}.{name}" if section else name for name, section in fields().section_of.items()}
    of_train = {f"environment.train.{name}" for name in ("args", "file", "limit")}
    options = {f"backend.options.{name}" for name in Options.__struct_fields__}
    early = {"environment.eval_tasks", "training.episodes"}
    return early | of_run | of_train | options | {f"training.recipe.{name}" for name in FIELDS}


@pytest.mark.slow
def test_at_least_sixty_guesses_are_led_to_what_is_right_and_none_to_another_thing() -> None:
    guesses = listed()
    with project():
        said = {guess: asked(guess) for guess in guesses}
    verdicts = {guess: judged(guess, text) for guess, text in said.items()}
    assert [(guess, said[guess]) for guess in guesses if verdicts[guess] == "wrong"] == []
    right = sum(verdict == "right" for verdict in verdicts.values())
    assert len(guesses) >= 60 and right >= 0.9 * len(guesses), [g for g in guesses if verdicts[g] != "right"]


def test_a_list_of_all_names_is_no_hint_and_another_name_is_wrong() -> None:
    guess = Guess("set", "x=1", "training.steps")
    assert judged(guess, "It is training.steps of a file") == "right"
    assert judged(guess, "there is no such key. Known here: training.steps") == "none"
    assert judged(guess, "there is no such key. Did you mean 'store'?") == "wrong"


def test_every_place_that_a_word_is_led_to_exists() -> None:
    known = keys()
    for here in {*words()["field"].values()}:
        place = re.match(r"[a-z_]+(\.[a-z_]+)+", here)
        assert place is None or place[0] in known, here
    commands = {*load().commands}
    for row in TABLE["command"]:
        if command := re.match(r"agl ([a-z]+)", row):
            assert command[1] in commands, row


def test_every_key_of_ours_is_known_where_it_does_not_belong() -> None:
    """One in another section, so that its own is said; names that several sections have are left out."""
    shared = {"name", "max_len", "reward", "epochs", "runner"}
    for key in keys():
        section, _, name = key.rpartition(".")
        if name not in shared and section != "environment.train":
            assert words()["field"].get(name, "").split()[:1] == [key]


def test_no_word_stands_in_two_rows() -> None:
    for kind, rows in TABLE.items():
        listed_words = [word for row in rows.values() for word in row.split()]
        twice = {word for word in listed_words if listed_words.count(word) > 1}
        assert not twice, (kind, twice)


@pytest.mark.parametrize(
    ("model", "whose"),
    [
        ("gpt-4o-mini", "OpenAI"),
        ("openai/gpt-5", "OpenAI"),
        ("claude-sonnet-4-5", "Anthropic"),
        ("openai/gpt-oss-20b", None),
        ("google/gemma-3-1b-it", None),
        ("someone/gpt-4-like", None),
        ("Qwen/Qwen3-0.6B", None),
        ("tiny", None),
    ],
)
def test_models_that_only_their_vendor_has(model: str, whose: str | None) -> None:
    assert vendor(model) == whose
