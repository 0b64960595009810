"""Fields of the tasks that only the reward should read, and where they reach the agent.

An agent that has the answer needs no model. A field counts as the reward's if ``environment.private`` names
it, or if it has a usual name of an answer and the reward function mentions it.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agl_programs.commands.agent import CommandAgent
from agl_programs.commands.command import placeholders

from agentlightning.train.configured import ConfiguredRun
from agentlightning.types import PromptTemplate
from agl_testing.doctor.report import Notes

ANSWERS = (
    "answer", "answers", "expected", "expected_answer", "expected_output", "gold", "ground_truth", "label",
    "labels", "query", "reference", "result", "solution", "target", "truth",
)  # fmt: skip
"""Usual names of what a reward compares with. ``query`` may be the question, so the reward decides."""
_LARGEST = 64 << 20
"""Bytes of a file that is looked through."""
_SAMPLE = 20
"""Tasks whose values are looked for in files."""
_SHORTEST = 4
"""Characters of a value that is looked for in files: a shorter one stands there by chance."""


def check_private_fields(notes: Notes, configured: ConfiguredRun) -> None:
    """Warn where a field of the reward reaches the agent: arguments, environment, standard input, files,
    prompts among the resources, or the task itself.
    """
    config, agent = configured.trainer.config, configured.agent
    tasks = [task for task in [*configured.train, *configured.val] if isinstance(task, Mapping)]
    fields = rewarded_fields(agent, config.environment.private, tasks)
    if not fields:
        return
    listed = ", ".join(fields)
    if isinstance(agent, CommandAgent):
        for where in _in_command(agent, fields):
            notes.warn(
                f"the program gets what its reward compares with: {where}",
                f"Name only what it may have, and grade by a function, which gets {listed} of each task.",
            )
        data = (config.environment.train, config.environment.val)
        named = [config.path(one.file) for one in data if one is not None and one.file]
        for file in files_with(agent, fields, tasks, named):
            notes.warn(
                f"the program gets {file}, in which {listed} of the tasks stand",
                "Give it files without them in agent.program.files.",
            )
    elif config.environment.private:
        notes.warn(
            f"the agent is a Python object, which gets the whole task with {', '.join(fields)}",
            "Run code that you do not trust as agent.command, which gets only what it names.",
        )
    else:
        notes.fact(f"the agent gets whole tasks, {listed} included, as every agent in Python does")
    for name, field in _in_prompts(configured.trainer.initial_resources, fields):
        notes.warn(
            f"the resource {name} puts {field} into the prompt",
            "Take it out of the template: the model would read what the reward compares with.",
        )


def rewarded_fields(agent: Any, private: Sequence[str], tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields that the reward reads: the private ones, and those with a usual name that its
    function mentions. A program that grades itself mentions what it gets.
    """
    known = {str(field) for task in tasks for field in task}
    usual = [name for name in ANSWERS if name in known]
    reward = agent.reward.function if isinstance(agent, CommandAgent) else getattr(agent, "reward", None)
    function = getattr(reward, "function", None)
    if (code := getattr(function, "__code__", None)) is not None:
        mentioned = set(_mentioned(code))
        usual = [name for name in usual if name in mentioned]
    else:
        usual = [name for name in usual if name not in ("query", "target")]
    return sorted({*private, *usual})


def _mentioned(code: types.CodeType) -> Iterator[str]:
    """Yield the texts and names in a function's code, and in that of functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _mentioned(constant)


def _in_command(agent: CommandAgent, fields: Sequence[str]) -> Iterator[str]:
    given = agent.command.given
    texts: dict[str, Sequence[str]] = {
        "its arguments": [given] if isinstance(given, str) else given,
        "its standard input": [agent.program.stdin or ""],
        **{f"the variable {name}": [text] for name, text in agent.program.env.items()},
    }
    for where, found in texts.items():
        for path in sorted({path for text in found for path in placeholders(text)}):
            if not path:
                yield f"{where} hold the whole task, {', '.join(fields)} included"
            elif path.partition(".")[0] in fields:
                yield f"{{task.{path}}} in {where}"


def files_with(
    agent: CommandAgent, fields: Sequence[str], tasks: Sequence[Mapping[str, Any]], data: Sequence[Path]
) -> list[Path]:
    """Return the files given to the program that are the tasks' own (``data``), or hold the values of such
    fields of each of the first tasks.
    """
    values = [
        [str(task[field]).encode() for field in fields if len(str(task.get(field, ""))) >= _SHORTEST]
        for task in tasks[:_SAMPLE]
    ]
    wanted = [found for found in values if found]
    return [file for file in _given_files(agent) if file in data or (wanted and _holds(file, wanted))]


def _given_files(agent: CommandAgent) -> Iterator[Path]:
    words = () if agent.command.is_shell else agent.command.given
    for given in [*agent.program.files, *words]:
        try:
            place = (agent.folder / Path(given).expanduser()).resolve()
            found = place.rglob("*") if place.is_dir() and given in agent.program.files else [place]
            yield from (file for file in found if file.is_file())
        except (OSError, ValueError, RuntimeError):  # a word that is no path
            continue


def _holds(file: Path, values: Sequence[Sequence[bytes]]) -> bool:
    try:
        if file.stat().st_size > _LARGEST:
            return False
        text = file.read_bytes()
    except OSError:
        return False
    return all(any(value in text for value in one) for one in values)


def _in_prompts(resources: Mapping[str, Any], fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name, resource in resources.items():
        text = resource.template if isinstance(resource, PromptTemplate) else resource
        for field in fields if isinstance(text, str) else ():
            if f"{{{field}}}" in text or f"{{task.{field}}}" in text or f"{{{{ {field} }}}}" in text:
                yield name, field
