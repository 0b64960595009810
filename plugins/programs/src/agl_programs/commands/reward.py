"""Reads the reward of a program that has ended.

A missing reward is not zero: the attempt fails as ``no-reward``, and one that is no finite number fails it as
``bad-reward``; the reason says where it was looked for.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from agentlightning.capture.records import BadRecord, reward_number
from agentlightning.decorator.reward_function import AgentError, RewardFunction
from agentlightning.runner.threads import in_thread
from agl_cluster.process_tree import describe_exit
from agl_programs.commands.result import CommandResult
from agl_programs.commands.settings import EXIT_STATUS, JSON_LINE, REWARD_KEY, RewardSection
from agl_programs.process import NOT_EXECUTED, ProgramFailed, RewardFile

FILE_BYTES = 1 << 20
"""Largest file that is read for a reward."""
_SHOWN = 300


class RewardReader:
    """Reads the reward from the place that ``given`` names: a word, a section, a function, or ``None`` (the
    file of ``AGL_REWARD_FILE``, if the program wrote it). ``agent``: the agent's name, for errors.
    """

    def __init__(self, given: Any, agent: str) -> None:
        self.function: RewardFunction | None = None
        self.section: RewardSection | None = None
        self.exit_status = given == EXIT_STATUS
        if callable(given):
            self.function = _function(given, agent)
        elif given == JSON_LINE:
            self.section = RewardSection(key=REWARD_KEY)
        elif isinstance(given, RewardSection) and given.function is None:
            self.section = given
        elif given is not None and not self.exit_status:
            raise AgentError(
                f"reward is {given!r}: give {EXIT_STATUS!r}, {JSON_LINE!r}, a key, a file, or a function "
                "(task, result) -> number"
            )

    async def read(self, result: CommandResult, written: RewardFile, owner: Any) -> float | None:
        """Return the reward; ``None``: the program may have emitted one. Raise :class:`.ProgramFailed` if the
        program failed and nothing else judges that, :class:`.BadRecord` or :class:`.BadReward` for a reward
        that is missing or malformed.
        """
        if self.function is not None:
            value = await in_thread(self.function.call, result, owner)
            reward = await value if inspect.isawaitable(value) else value
            if reward is not None or (result.exit_code == 0 and not result.ended):
                return reward
        if self.exit_status and 0 <= result.exit_code < NOT_EXECUTED and not result.ended:
            return float(result.exit_code == 0)
        if result.ended:
            raise ProgramFailed(f"the program passed a limit of its sandbox: {result.ended}")
        if result.exit_code:
            raise ProgramFailed(f"the program {describe_exit(result.exit_code)}{last_line(result.stderr)}")
        if self.section is None:
            return written.read()
        found, where = _object(self.section, result)
        return _number(found, self.section.key, where)


def _function(given: Callable[..., Any], agent: str) -> RewardFunction:
    try:
        return RewardFunction(given, agent)
    except AgentError as error:
        raise AgentError(str(error).removeprefix("@agl.agent: ")) from None


def _object(section: RewardSection, result: CommandResult) -> tuple[Any, str]:
    """Return the JSON value that holds the reward, and its place in words."""
    if section.file is None:
        where = "the last JSON line of its standard output"
        for line in reversed(result.stdout.split("\n")):
            if line.lstrip().startswith("{") and isinstance(found := _json(line), dict):
                return found, where
        dropped = f" ({result.stdout_dropped} earlier bytes were not kept)" if result.stdout_dropped else ""
        _missing(f"the program printed no line with a JSON object{dropped}")
    text = _text(result.folder / section.file, section.file)
    found = _json(text)
    if found is None:
        raise BadRecord(f"the file {section.file} holds {text[:60]!r}, which is no JSON", "bad-reward")
    return found, f"the file {section.file}"


def _text(path: Path, name: str) -> str:
    try:
        if not path.is_file():  # reading a pipe would block
            _missing(f"the program wrote no file {name}")
        with path.open("rb") as file:
            return file.read(FILE_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRecord(f"the file {name} cannot be read: {error}", "bad-reward") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _number(found: Any, key: str | None, where: str) -> float:
    if key is not None:
        if not isinstance(found, dict):
            raise BadRecord(
                f"{where} holds a {type(found).__name__}, not an object with {key!r}", "bad-reward"
            )
        if found.get(key) is None:
            _missing(f"{where} has no {key!r}; it has {', '.join(map(repr, found)) or 'no keys'}"[:_SHOWN])
        found = found[key]
    return reward_number(found, f"the reward in {where}")


def _missing(why: str) -> NoReturn:
    raise BadRecord(why, "no-reward")


def last_line(stderr: str) -> str:
    """Return the last line of a program's standard error, after a colon; empty if there is none."""
    lines = stderr.strip().splitlines()
    return f": {lines[-1].strip()[:_SHOWN]}" if lines else ""
