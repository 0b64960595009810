"""Makes every guess of guesses.toml and judges what is said of it: ``make guess``. The last line is JSON.

A message is *right* where it names what stands in the table, *wrong* where it names another thing and not
that, and else says nothing that helps. What follows ``Known here:`` is a list and no hint.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import agentlightning as agl
from agentlightning import cli
from agentlightning.terminal import Console

LIST = Path(__file__).with_name("guesses.toml")
RUN = """\
agent: {target: guessed_agent:solve}
environment: {train: {file: train.jsonl}}
backend: {policy: tiny}
"""
AGENT = "def solve(task, llm):\n    return 1.0\n"
HINTS = ("It is ", "Did you mean ")

Verdict = Literal["right", "wrong", "none"]


class Guess(NamedTuple):
    """A guess: the kind of place where it is made, its text, and what is right."""

    place: str
    text: str
    right: str


def listed() -> list[Guess]:
    """Return the guesses of the table."""
    table = tomllib.loads(LIST.read_text(encoding="utf-8"))
    return [Guess(place, text, right) for place, rows in table.items() for text, right in rows.items()]


def judged(guess: Guess, said: str) -> Verdict:
    """Judge what was said of a guess."""
    hint = said.partition("Known here:")[0]
    if guess.right in hint:
        return "right"
    return "wrong" if any(word in hint for word in HINTS) else "none"


@contextlib.contextmanager
def project() -> Iterator[None]:
    """A folder with a run that is right, as the working folder."""
    before, path = Path.cwd(), [*sys.path]
    with tempfile.TemporaryDirectory(prefix="guess-") as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        Path("run.yaml").write_text(RUN, encoding="utf-8")
        Path("guessed_agent.py").write_text(AGENT, encoding="utf-8")
        Path("train.jsonl").write_text('{"q": 1}\n', encoding="utf-8")
        try:
            yield
        finally:
            os.chdir(before)
            sys.path[:] = path
            sys.modules.pop("guessed_agent", None)


def asked(guess: Guess) -> str:
    """Make a guess in the project and return the message of its refusal."""
    match guess.place:
        case "set" | "value":
            return agl_says("train", "--config", "run.yaml", "--set", guess.text)
        case "file":
            Path("guessed.yaml").write_text(f"{RUN}{guess.text}\n", encoding="utf-8")
            return agl_says("train", "--config", "guessed.yaml")
        case "command":
            return agl_says(*guess.text.split())
        case "trainer" | "recipe":
            maker = "Trainer" if guess.place == "trainer" else "GRPO"
            try:
                eval(f"agl.{maker}({guess.text})", {"agl": agl})
            except (TypeError, ValueError, agl.UsageError) as error:
                return str(error)
            return ""
        case _:
            raise ValueError(f"{LIST.name}: no guesses are made in [{guess.place}]")


def agl_says(*arguments: str) -> str:
    """Run the command in this process; return what it writes to stderr, as one line."""
    said, before = io.StringIO(), sys.argv
    sys.argv = ["agl", *arguments]
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            cli.main()
    except SystemExit:
        pass
    finally:
        sys.argv = before
    return " ".join(said.getvalue().replace("│", " ").split())


def main() -> int:
    """See the module."""
    with project():
        found = [(guess, said, judged(guess, said)) for guess in listed() for said in [asked(guess)]]
    console = Console(stderr=True)
    for guess, said, verdict in found:
        if verdict != "right":
            console.print(
                f"{verdict}: {guess.place} {guess.text} (right: {guess.right})\n  {said}", markup=False
            )
    verdicts = [verdict for *_, verdict in found]
    right, wrong = verdicts.count("right"), verdicts.count("wrong")
    print(json.dumps({"guesses": len(found), "right_hint": right, "wrong_hint": wrong}))
    return int(wrong > 0 or right < 0.9 * len(found))


if __name__ == "__main__":
    sys.exit(main())
