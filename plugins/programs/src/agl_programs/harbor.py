"""Task folders in Harbor's format: each attempt in a sandbox of its own, graded by the task's own tests.

    agent: {target: "agl_programs.harbor:play"}
    environment: {train: {target: "agl_programs.harbor:tasks", args: {folder: tasks}}}

A task folder holds ``task.toml``, ``instruction.md``, ``environment/Dockerfile``, ``tests/test.sh`` and
perhaps ``solution/solve.sh``. No image is built: the working folder and what the Dockerfile copies lie in the
sandbox at their paths, all programs are those of this machine, and its ``RUN`` lines run there, without
network. A task that cannot live so is refused by name.

Invariants: attempts share nothing; the tests, and the log folder into which they write the reward, come into
being after the last command of the agent, so it neither reads nor writes them; a missing reward is not zero.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import shlex
import tomllib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import agentlightning as agl
from agentlightning.types import LLM, UsageError
from agl_programs.sandbox.box import Sandbox, SandboxResult
from agl_programs.sandbox.bubblewrap import PREFIXES

Task = dict[str, Any]
TESTS, LOGS, SOLUTION = "/tests", "/logs", "/solution"
PRIMARY = "reward"
SHOWN = 8_000
"""Characters of a command's output that the model is shown: the last ones."""
_TAKEN = {
    "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sandbox", "sbin", "sys", "tmp", "usr"
}  # fmt: skip
"""First parts of paths at which a sandbox has something already."""
_NOTHING = {
    "ARG", "CMD", "ENTRYPOINT", "EXPOSE", "FROM", "LABEL", "MAINTAINER", "STOPSIGNAL", "USER", "VOLUME"
}  # fmt: skip
"""Instructions that change nothing here: whoever runs a command is no user of this machine."""
BASH = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the task's environment and return its output.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


class NotGraded(RuntimeError):
    """Tests that gave no reward."""


@dataclass(frozen=True)
class HarborTask:
    """A task folder. Raise :class:`.UsageError` for one that is none, or that needs more than a sandbox."""

    folder: Path
    workdir: str = field(default="/", init=False)
    env: dict[str, str] = field(default_factory=dict, init=False)
    steps: list[tuple[str, str, str]] = field(default_factory=list, init=False)
    """``COPY`` and ``RUN`` in their order: instruction, its words, and the working folder at that line."""

    def __post_init__(self) -> None:
        for name in ("task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"):
            if not (self.folder / name).is_file():
                raise self.refused(f"there is no {name}")
        if self.config.get("steps") or self._section("environment").get("os", "linux") != "linux":
            raise self.refused("it has several steps, or another system than Linux")
        self.env.update(self._section("environment").get("env", {}))
        text = (self.folder / "environment" / "Dockerfile").read_text(encoding="utf-8")
        where = "/"
        for instruction, rest in _instructions(text):
            if instruction == "WORKDIR":
                where = str(PurePosixPath(where, rest.strip().strip("\"'")))
            elif instruction == "ENV":
                self.env.update(self._variables(rest))
            elif instruction in ("COPY", "ADD", "RUN"):
                self.steps.append((instruction, rest, where))
            elif instruction not in _NOTHING:
                raise self.refused(f"its Dockerfile says {instruction}")
        object.__setattr__(self, "workdir", self._section("environment").get("workdir") or where)
        if self.workdir == "/":
            raise self.refused("its Dockerfile names no WORKDIR, and the root of a sandbox cannot be written")
        for path in self.places:
            if PurePosixPath(path).parts[1] in _TAKEN:
                raise self.refused(f"it writes to {path}, where a sandbox has the files of this machine")
            if any(PurePosixPath(path).is_relative_to(prefix) for prefix in PREFIXES):
                raise self.refused(f"it writes to {path}, where the Python of this machine lies")

    @cached_property
    def config(self) -> dict[str, Any]:
        """``task.toml``."""
        return tomllib.loads((self.folder / "task.toml").read_text(encoding="utf-8"))

    @cached_property
    def places(self) -> dict[str, str]:
        """Path in the environment → folder of the sandbox's that stands there; the working folder first."""
        copied = [_target(rest, where) for instruction, rest, where in self.steps if instruction != "RUN"]
        roots = ["/" + PurePosixPath(path).parts[1] for path in (self.workdir, *copied) if path != "/"]
        found = {root: f"root-{root[1:]}" for root in dict.fromkeys(roots)}
        return {self.workdir: inside(self.workdir, found), **found}

    def _section(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.config.get(name, {})
        return found

    def seconds(self, section: str) -> float:
        """The time that the agent or the verifier has."""
        return float(self._section(section).get("timeout_sec") or 600.0)

    def limits(self) -> dict[str, Any]:
        """The sandbox's limits, as far as the task names any."""
        given = self._section("environment")
        known = {"memory_mb": "memory", "storage_mb": "disk"}
        return {mine: f"{given[theirs]}MB" for theirs, mine in known.items() if given.get(theirs)}

    def refused(self, why: str) -> UsageError:
        """The error of a task that cannot be run here."""
        return UsageError(f"Harbor task {self.folder}: {why}; `harbor run` runs it in a container")

    def _variables(self, rest: str) -> dict[str, str]:
        words = shlex.split(rest)
        if "=" not in words[0]:  # the old form, of one variable
            return {words[0]: " ".join(words[1:])}
        return dict(word.split("=", 1) for word in words)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions of a Dockerfile, each with the rest of its line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        yield name.upper(), rest.strip()


def _target(rest: str, where: str) -> str:
    return str(PurePosixPath(where, shlex.split(rest)[-1]))


def inside(path: str, places: Mapping[str, str]) -> str:
    """Return the path in a sandbox's folder of a path in its environment. ``ValueError`` for one that is
    nobody's.
    """
    for place in sorted(places, key=len, reverse=True):
        if PurePosixPath(path).is_relative_to(place):
            return str(PurePosixPath(places[place]) / PurePosixPath(path).relative_to(place))
    raise ValueError(f"{path}: an environment's files lie below {', '.join(places)}")


class Trial:
    """A task's environment for one attempt, in a block of :func:`trial`."""

    def __init__(self, task: HarborTask, box: Sandbox) -> None:
        self.task, self._box = task, box

    async def run(
        self, command: str | Sequence[str], *, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> SandboxResult:
        """Run a command in the working folder: a list of words, or a line for ``/bin/sh``."""
        return await self._box.run(command, stdin=stdin, env={**self.task.env, **(env or {})})

    def write(self, path: str, content: str | bytes, *, executable: bool = False) -> None:
        """Write a file; a relative path begins at the working folder."""
        whole = str(PurePosixPath(self.task.workdir, path))
        self._box.write(inside(whole, self._box.places), content, executable=executable)

    def copy(self, source: Path, path: str) -> None:
        """Copy a file of this machine, or what a folder of it holds."""
        for file in [source] if source.is_file() else sorted(source.rglob("*")):
            if file.is_file():
                target = PurePosixPath(path, file.relative_to(source).as_posix())
                self.write(str(target), file.read_bytes(), executable=os.access(file, os.X_OK))

    def read(self, path: str) -> bytes:
        """Return the content of a file, as :meth:`.Sandbox.read` does."""
        return self._box.read(inside(str(PurePosixPath(self.task.workdir, path)), self._box.places))

    async def solve(self) -> SandboxResult:
        """Run the task's own solution, in the agent's stead."""
        self._place(SOLUTION)
        self.copy(self.task.folder / "solution", SOLUTION)
        return await self.run(f"chmod +x {SOLUTION}/*; {SOLUTION}/solve.sh")

    async def grade(self) -> dict[str, float]:
        """Run the tests, and return their rewards by name, ``reward`` among them. The agent's part ends here.
        Raise :class:`NotGraded` if the tests wrote no reward, or one that is no number.
        """
        box = self._box
        box.section = box.section.model_copy(update={"seconds": self.task.seconds("verifier")})
        self._place(TESTS)
        self.copy(self.task.folder / "tests", TESTS)
        logs = self._place(LOGS)
        for name in ("agent", "verifier", "artifacts"):
            box.add_folder(f"{logs}/{name}")
        env = self.task._section("verifier").get("env", {})
        done = await self.run(f"chmod +x {TESTS}/test.sh; {TESTS}/test.sh", env=env)
        said = f"status {done.status}{f', ended by {done.ended}' if done.ended else ''}: {done.stderr[-500:]}"
        for name in ("reward.json", "reward.txt"):
            try:
                text = box.read(f"{logs}/verifier/{name}").decode()
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                raise NotGraded(f"{self.task.folder}: {name} cannot be read: {error}") from None
            return _rewards(text, f"{self.task.folder}: {name}")
        raise NotGraded(f"{self.task.folder}: the tests wrote no {LOGS}/verifier/reward.txt ({said})")

    def _place(self, path: str) -> str:
        """Give a path a folder that nobody has seen."""
        name = f"{path[1:]}-{secrets.token_hex(8)}"
        self._box.add_folder(name)
        self._box.places = {**self._box.places, path: name}
        return name


def _rewards(text: str, where: str) -> dict[str, float]:
    try:
        found = json.loads(text)
        named = found if isinstance(found, dict) else {PRIMARY: found}
        rewards = {str(name): float(value) for name, value in named.items()}
    except (ValueError, TypeError) as error:
        raise NotGraded(f"{where} holds {text[:60]!r}: {error}") from None
    if len(rewards) == 1:
        rewards = {PRIMARY: next(iter(rewards.values()))}
    if PRIMARY not in rewards or not all(map(math.isfinite, rewards.values())):
        raise NotGraded(f"{where} holds {text[:60]!r}: a finite number called {PRIMARY} is wanted")
    return rewards


@asynccontextmanager
async def trial(task: Mapping[str, Any]) -> AsyncIterator[Trial]:
    """Open the environment of a task of :func:`tasks`. Raise :class:`.UsageError` if it cannot be made."""
    found = HarborTask(Path(task["folder"]))
    async with Sandbox(**{"seconds": found.seconds("agent"), **found.limits()}) as box:
        for place in found.places.values():
            _made(box, place)
        box.places = found.places
        one = Trial(found, box)
        for instruction, rest, where in found.steps:
            if instruction == "RUN":
                done = await one.run(f"cd {shlex.quote(where)}\n{rest}")
                if not done.ok:
                    said = done.ended or done.stderr.strip()[-200:]
                    raise found.refused(f"its line RUN {rest[:80]} fails without its image: {said}")
            else:
                _copy(one, rest, where)
        yield one


def _made(box: Sandbox, name: str) -> None:
    try:
        box.add_folder(name)
    except FileExistsError:
        pass  # the working folder lies in a place of its own, or is one


def _copy(one: Trial, rest: str, where: str) -> None:
    """``COPY``: files, or what a folder holds, of the folder ``environment``."""
    *sources, target = shlex.split(rest)
    context = (one.task.folder / "environment").resolve()
    for source in sources:
        path = (context / source.lstrip("/")).resolve()
        if source.startswith("--") or not path.exists() or not path.is_relative_to(context):
            raise one.task.refused(f"its Dockerfile copies {source}, which is not in its environment")
        into = PurePosixPath(where, target)
        named = path.is_file() and (target.endswith("/") or target == "." or len(sources) > 1)
        one.copy(path, str(into / path.name if named else into))


def tasks(folder: str, names: Sequence[str] | None = None, max_turns: int = 16) -> list[Task]:
    """Return the task folders below ``folder``, or those of ``names``, in the order of their names.
    ``max_turns``: the answers that :func:`play` asks the model for. Raise :class:`.UsageError` for a task
    that cannot be run in a sandbox, and if there is none.
    """
    root = Path(folder).expanduser().resolve()
    found = (
        [root / name for name in names] if names else sorted(path.parent for path in root.glob("*/task.toml"))
    )
    if not found:
        raise UsageError(f"{root} holds no task folders of Harbor (NAME/task.toml)")
    return [
        {
            "folder": str(one.folder),
            "name": one.folder.name,
            "instruction": (one.folder / "instruction.md").read_text(encoding="utf-8"),
            "max_turns": max_turns,
        }
        for one in map(HarborTask, found)
    ]


@agl.rollout
async def play(task: Mapping[str, Any], llm: LLM) -> float:
    """Work on a task with the tool ``bash`` until an answer calls none, and return the reward of its tests.
    When the turns or the time of the agent are used up, the task is graded as it stands.
    """
    async with trial(task) as one:
        try:
            async with asyncio.timeout(one.task.seconds("agent")):
                turns = await _played(one, task, llm)
        except TimeoutError:
            turns = task["max_turns"]
        rewards = await one.grade()
    agl.emit_reward(float(turns), name="turns", final=False)
    return report(rewards)


def report(rewards: Mapping[str, float]) -> float:
    """Emit all rewards of a grading but ``reward``, which is returned."""
    for name, value in rewards.items():
        if name != PRIMARY:
            agl.emit_reward(value, name=name, final=False)
    return rewards[PRIMARY]


async def _played(one: Trial, task: Mapping[str, Any], llm: LLM) -> int:
    from openai import AsyncOpenAI

    messages: list[Any] = [{"role": "user", "content": task["instruction"]}]
    tools: Any = [BASH]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
        for turn in range(1, task["max_turns"] + 1):
            answer = await client.chat.completions.create(model=llm.model, messages=messages, tools=tools)
            message = answer.choices[0].message
            if not message.tool_calls:
                return turn
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                said = await _called(one, call)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    return int(task["max_turns"])


async def _called(one: Trial, call: Any) -> str:
    """Run a call of the tool; the model is told what was wrong with it."""
    try:
        command = json.loads(call.function.arguments)["command"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f'error: call bash with {{"command": …}}: {error!r}'
    if not isinstance(command, str) or "\0" in command:
        return "error: command is a text"
    done = await one.run(command)
    shown = (done.stdout + done.stderr)[-SHOWN:]
    return shown if done.ok else f"{shown}\n[status {done.status}{f', {done.ended}' if done.ended else ''}]"
