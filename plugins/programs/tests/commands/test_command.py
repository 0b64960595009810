"""Placeholders: values are data, in words and in shell lines."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
from agl_programs.commands.command import BadCommand, Command, UnknownField, fill

TASK = {"question": "a b", "n": 3, "deep": {"list": [{"x": True}]}, "none": None, "text": "{task.n}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{task.question}", "a b"),
        ("--n={task.n}", "--n=3"),
        ("{task.deep.list.0.x}", "true"),
        ("{task.deep}", '{"list": [{"x": true}]}'),
        ("{task.none}", "null"),
        ("{task.text}", "{task.n}"),  # a value is not read again
        ('{"a": {task.n}}', '{"a": 3}'),
        ("{other} {} {{task}} {{task.n}} {{x}}", "{other} {} {task} {task.n} {{x}}"),
    ],
)
def test_placeholders_of_words(text: str, expected: str) -> None:
    assert Command.of(["p", text]).words(TASK) == ["p", expected]


def test_a_text_task_is_put_in_as_it_is() -> None:
    assert fill("{task}", "say 'hi'") == "say 'hi'" and fill("{task}", ["é"]) == '["é"]'


@pytest.mark.parametrize(
    ("text", "task", "message"),
    [
        ("{task.answer}", TASK, "no 'answer' in the task; it has question, n,"),
        ("{task.question.x}", TASK, "it is a str"),
        ("{task.deep.list.1}", TASK, "it is a list of 1"),
        ("{task.a}", {}, "it has no fields"),
        ("{task.a}", None, "it is a NoneType"),
    ],
)
def test_an_unknown_field_is_named(text: str, task: Any, message: str) -> None:
    with pytest.raises(UnknownField, match=message):
        Command.of(["p", text]).words(task)


@pytest.mark.parametrize("given", [[], [""], ["a", 3], "", "  "])
def test_what_is_no_command_is_refused(given: Any) -> None:
    with pytest.raises(BadCommand):
        Command.of(given)


def shell(line: str, task: Any) -> str:
    command = Command.of(line)
    environment = {**os.environ, **command.variables(task)}
    return subprocess.run(
        command.words(task), env=environment, stdout=subprocess.PIPE, check=True
    ).stdout.decode()


HOSTILE = "$(echo bad) `echo bad` ; echo bad \" ' \\ * ${HOME} | # \n end"


@pytest.mark.parametrize(
    "line", ["printf %s {task.q}", 'printf %s "{task.q}"', "printf %s\\\\n x >/dev/null; printf %s {task.q}"]
)
def test_a_shell_never_reads_a_value_as_code(line: str) -> None:
    assert shell(line, {"q": HOSTILE}) == HOSTILE


def test_a_shell_line_keeps_its_own_syntax() -> None:
    assert (
        shell("for i in 1 2; do printf '%s-' $i; done; echo {task.a}{{task}} | cat", {"a": "x"})
        == "1-2-x{task}\n"
    )


def test_a_placeholder_in_single_quotes_is_refused() -> None:
    with pytest.raises(BadCommand, match=r"\{task.q\} stands in single quotes"):
        Command.of("echo '{task.q}'")
    assert shell("echo \\'{task.q}\\'", {"q": "a b"}) == "'a b'\n"  # an escaped quote opens nothing
