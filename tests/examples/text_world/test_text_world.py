"""The player of a text game: games, what is seen, notes, agent, scripts, teacher, view, configuration."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textworld", reason="an extra of the example: it needs jericho, which is GPL")
pytest.importorskip("torch")

from agl_testing import ScriptedModelServer
from contract.running import rolled_out

import agentlightning as agl
from agentlightning.cli.options import read
from agentlightning.store import SQLiteStore
from agentlightning.train.configured import configure
from agentlightning.types import Rollout
from agl_examples.views import text_game
from text_world import cook, journey
from text_world.agent import SYSTEM, command_of, play
from text_world.baselines import COUNT, PLAYERS, careful_reader, oracle, played, rewards, scripted_cook
from text_world.evaluate import Course
from text_world.games import EACH, KINDS, TURNS, game_of, gold, made, playable, task, tasks
from text_world.notes import Notes
from text_world.playing import Playing
from text_world.teacher import ERROR_RATE, MISTAKES, lesson, turns
from text_world.warmstart import tokenizer, words

EXAMPLE = Path(journey.__file__).parent


def recipe(one: dict[str, Any]) -> set[tuple[str, str, str]]:
    """The ingredients of a game, each with how it is cooked and cut."""
    return {tuple(found) for found in game_of(one).metadata["ingredients"]}


def after(commands: list[str], kind: str = "two", seed: int = 2) -> tuple[Playing, Notes]:
    """A held-out game and its notes after some commands."""
    game = Playing(made(kind, seed, "heldout"))
    notes = Notes(game.look())
    for command in commands:
        read = game.do(command)
        notes.did(command, read, game.look())
    return game, notes


# ------------------------------------------------------------------------------------------------- games
def test_games_are_the_same_each_time_and_kinds_take_turns() -> None:
    first = tasks("train", 6)
    assert [one["kind"] for one in first] == [*KINDS] * 2 and first == tasks("train", 9)[:6]
    assert first != tasks("train", 6, seed=2)
    made.cache_clear()
    once = made("yard", 5, "train").serialize()
    made.cache_clear()
    assert made("yard", 5, "train").serialize() == once


def test_held_out_games_are_those_of_the_file_and_of_no_other_food() -> None:
    held_out = tasks("heldout", 10**6)
    assert len(held_out) == COUNT == EACH * len(KINDS) == len({one["id"] for one in held_out})
    for kind in KINDS:
        seeds = [one["seed"] for one in held_out if one["kind"] == kind]
        assert [*islice(playable(kind), 3)] == seeds[:3]


def test_nothing_is_prepared_in_a_held_out_game_as_it_is_in_training() -> None:
    trained = {one for given in tasks("train", 60) for one in recipe(given)}
    out = {one for given in tasks("heldout", 30) for one in recipe(given)}
    assert len(trained) > 20 and len(out) > 8 and not trained & out


def test_the_library_says_what_is_won_and_lost() -> None:
    one = task("two", 2, "heldout")
    game = Playing(game_of(one))
    assert [game.do(command) for command in gold(game_of(one))][-1] == "" and game.won and game.over
    commands = gold(game_of(one))
    at = next(number for number, command in enumerate(commands) if command.startswith("cook "))
    game, _ = after([*commands[:at], commands[at]])
    assert not game.over
    game.do(commands[at])  # cooked twice is burned
    assert game.over and not game.won


def test_a_command_that_the_game_does_not_take_changes_nothing() -> None:
    game, _ = after([])
    before = game.look()
    assert game.do("go up") is None and game.do("eat meal") is None and game.look() == before
    assert game.do("look") == ""


def test_a_thing_is_taken_from_where_it_lies() -> None:
    commands = gold(made("two", 2, "heldout"))
    at = commands.index("examine cookbook")
    name = commands[at + 1].removeprefix("take ").partition(" from ")[0]
    game, _ = after(commands[: at + 1])
    assert game.do("take") is game.do("take from counter") is game.do("go") is None
    assert game.do(f"take {name}") == "" and name in {one.name for one in game.look().carried}


# --------------------------------------------------------------------------------------- what is seen, notes
def test_what_is_in_a_closed_thing_is_not_seen() -> None:
    commands = gold(made("two", 2, "heldout"))
    at = commands.index("open fridge")
    shut, _ = after(commands[:at])
    opened, _ = after(commands[: at + 1])
    name = commands[at + 1].removeprefix("take ").partition(" from ")[0]
    assert name not in {one.name for one in shut.look().things}
    assert f"{name} in fridge" in {str(one) for one in opened.look().things}
    assert "fridge (closed)" in {str(one) for one in shut.look().things}


def test_notes_find_the_way_back_and_what_was_not_taken() -> None:
    commands = gold(made("two", 2, "heldout"))
    walk = [command for command in commands[: commands.index("examine cookbook")] if command != "inventory"]
    game, notes = after(walk)
    assert notes.view.room == "kitchen"
    start = Playing(made("two", 2, "heldout")).look().room
    assert start in notes.ways() and notes.whereabouts("cookbook") == "here"
    while notes.view.room != start:
        command = notes.meant(f"go {start}")
        notes.did(command, game.do(command), game.look())
    assert "cookbook" in notes.text() and notes.whereabouts("cookbook") == "kitchen"
    assert "List: not read" in notes.text()


def test_the_list_is_what_the_cookbook_says_and_tells_what_was_done() -> None:
    commands = gold(made("two", 2, "heldout"))
    _, notes = after(commands[: commands.index("examine cookbook") + 1])
    text = made("two", 2, "heldout").metadata["recipe"]
    assert all(f"{step} the {one.name}" in text for one in notes.wanted for step in one.steps)
    assert len(notes.wanted) == 2 and {len(one.steps) for one in notes.wanted} == {2}
    at = next(number for number, command in enumerate(commands) if command.startswith("cook "))
    _, notes = after(commands[: at + 1])
    name = commands[at].removeprefix("cook ").partition(" with ")[0]
    wanted = next(one for one in notes.wanted if one.name == name)
    assert len(wanted.steps) == 2 and len(notes.left(wanted)) < 2
    assert f" {name}: carried" in notes.text() and ", ".join(wanted.steps) not in notes.text()
    _, notes = after(commands[:-1])
    assert "List: prepared" in notes.text()


def test_a_refused_command_is_told() -> None:
    _, notes = after(["go nowhere"])
    assert "Last: go nowhere: refused" in notes.text()
    assert notes.meant("go kitchen") == "go kitchen", "it was not seen yet"


def test_prompts_stay_short() -> None:
    chat = tokenizer()
    one = max(tasks("heldout", 24), key=lambda given: len(gold(game_of(given))))
    course = Course(one)
    longest = 0
    while course.open:
        longest = max(longest, len(chat.encode(course.notes.text())))
        course.take(cook.step(course.notes))
    assert course.game.won and course.turns > 20 and longest < 200


# ------------------------------------------------------------------------------------------------- agent
async def test_the_agent_asks_once_a_turn_and_ends_with_the_game() -> None:
    one = task("kitchen", 1, "heldout")
    course = Course(one)  # what evaluates a policy without agent and server sends the same
    sent: list[str] = []

    def script(body: dict[str, Any]) -> str:
        sent.append(course.notes.text())
        said = cook.step(course.notes)
        course.take(said)
        return f" {said}.\nAnd then I go on."

    async with ScriptedModelServer(script) as server:
        llm = agl.LLM(endpoint=server.url, model="scripted", api_key="none")
        assert await play(one, llm=llm) == 1.0
        bodies = [exchange.body for exchange in server.log]
    assert [body["messages"][-1]["content"] for body in bodies] == sent
    assert {body["messages"][0]["content"] for body in bodies} == {SYSTEM}
    assert course.turns == len(bodies) < one["turns"]


async def test_a_model_that_never_plays_has_its_turns_and_no_more() -> None:
    one = task("kitchen", 1, "heldout")
    async with ScriptedModelServer(lambda body: "look") as server:
        llm = agl.LLM(endpoint=server.url, model="scripted", api_key="none")
        assert await play(one, llm=llm) == 0.0
        assert len(server.log) == TURNS["kitchen"]


@pytest.mark.parametrize(("answer", "command"), [
    ("go north", "go north"), (" take carrot \n\nok", "take carrot"), ("eat meal.", "eat meal"),
    ("", "nothing"), (None, "nothing"), ("\n \n", "nothing"),
])  # fmt: skip
def test_a_command_is_the_first_line_of_an_answer(answer: str | None, command: str) -> None:
    assert command_of(answer) == command


# ------------------------------------------------------------------------------------- scripts and teacher
def test_scripts_earn_what_their_knowledge_is_worth() -> None:
    given = tasks("heldout", 24)
    assert sum(rewards(PLAYERS["random"], given)) == 0
    careful, known = sum(rewards(careful_reader, given)), sum(rewards(scripted_cook, given))
    assert 3 <= careful < known - 5 and known >= 20
    assert sum(map(oracle, given)) >= 22


@pytest.mark.slow
def test_baselines_are_those_of_the_page() -> None:
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    given = tasks("heldout", COUNT)
    for name, player in PLAYERS.items():
        assert f"| `{name}` | {sum(rewards(player, given)) / COUNT:.3f} |" in page, name
    assert f"| `oracle` | {sum(map(oracle, given)) / COUNT:.3f} |" in page


def test_a_slip_is_made_where_it_is_named_and_loses() -> None:
    diced = [given for given in tasks("train", 60) if "dice the" in game_of(given).metadata["recipe"]]
    one = next(given for given in diced if given["kind"] == "kitchen")

    def slips(notes: Notes, commands: Any, drawn: random.Random) -> str:
        return cook.step(notes, {"dice": "slice"})

    assert played(one, scripted_cook) == 1.0 and played(one, slips) == 0.0


def test_the_teacher_errs_as_often_and_only_as_it_says() -> None:
    told = {
        "dice": ("slice ", "dice "),
        "roast": (" with stove", " with oven"),
        "fry": (" with oven", " with stove"),
    }
    found: Counter[tuple[str, bool]] = Counter()
    for number in range(60):
        said = "\n".join(
            one for _, one in lesson("kitchen", 7_000 + number, random.Random(number), ERROR_RATE)
        )
        for what, (wrong, right) in told.items():
            if f"{what} the" in made("kitchen", 7_000 + number, "train").metadata["recipe"]:
                found[what, True] += wrong in said
                found[what, False] += right in said and wrong not in said
    for what in MISTAKES.keys() & told.keys():
        share = found[what, True] / (found[what, True] + found[what, False])
        assert ERROR_RATE - 0.25 < share < ERROR_RATE + 0.25
    assert not found["fry", True] and found["fry", False] > 10


def test_the_teacher_is_right_at_first() -> None:
    given = tasks("train", 12)
    said = [[one for _, one in lesson(game["kind"], game["seed"], random.Random(1), 0.0)] for game in given]
    assert sum(one[-1] == "eat meal" for one in said) >= 10
    roasted = [
        one for one, game in zip(said, given, strict=True) if "roast the" in game_of(game).metadata["recipe"]
    ]
    assert roasted and all(" with oven" in "\n".join(one) for one in roasted)


def test_the_teachers_turns_are_what_the_agent_sends() -> None:
    told = [*islice(turns(1, 0.7), 40)]
    assert told == [*islice(turns(1, 0.7), 40)] != [*islice(turns(2, 0.7), 40)]
    assert {messages[0]["content"] for messages, _ in told} == {SYSTEM}
    assert all(messages[1]["content"].startswith("Room: ") for messages, _ in told)


def test_each_name_and_fixed_word_is_one_token() -> None:
    chat = tokenizer()
    for piece in words():
        (token,) = chat.encode(piece)
        assert not chat.is_special(token)
    assert len(chat.encode("take red bell pepper from counter")) == 4


# -------------------------------------------------------------------------------------- view, configuration
async def test_the_view_shows_each_turn_with_its_notes() -> None:
    one = task("kitchen", 1, "heldout")
    course = Course(one)

    def script(body: dict[str, Any]) -> str:
        said = "go up" if not course.turns else cook.step(course.notes)
        course.take(said)
        return said

    store = SQLiteStore(":memory:")
    async with ScriptedModelServer(script) as engine:
        _, record, why = await rolled_out(play, one, store, engine)
    await store.close()
    assert not why
    told = journey.story(record)
    assert told["won"] and len(told["turns"]) == course.turns
    assert [turn.taken for turn in told["turns"]] == [False, *[True] * (course.turns - 2), None]
    page = journey.html(told)
    assert "kitchen-1" in page and "eat meal" in page and page.count('class="bad"') == 1
    assert not any(mark in page for mark in ("<script", "src=", "href=", "http"))
    assert text_game(Rollout(rollout_id="r", input=one))
    assert not text_game(Rollout(rollout_id="r", input={"kind": "two", "seed": 1}))


def test_the_cpu_profile() -> None:
    trainer, agent, train, val = configure(read(EXAMPLE / "cpu.yaml", []))
    assert agent.function is play.function and len(val) == COUNT and len(train) == 600
    assert {one["kind"] for one in train} == {*KINDS}
    assert trainer.config.training.seed == 1
