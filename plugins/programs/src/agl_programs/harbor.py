"""Task folders in Harbor's format: each attempt in a sandbox of its own, graded by the task's own tests.

    agent: {target: "agl_programs.harbor:play"}
    environment: {train: {target: "agl_programs.harbor:tasks", args: {folder: tasks}}}

No image is built: the working folder and what the Dockerfile copies lie in the sandbox at their paths, all
programs are those of this machine, and its ``RUN`` lines run there, without network.

Invariants: attempts share nothing; the tests, and the log folder into which they write the reward, come into
being after the last command of the agent, so it neither reads nor writes them; a missing reward is not zero.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import shlex
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import agentlightning as agl
from agentlightning.types import LLM, UsageError
from agl_programs.harbor_task import HarborTask, RunStep, inside
from agl_programs.sandbox.box import Sandbox, SandboxResult

_LOG = logging.getLogger(__name__)
Task = dict[str, Any]
TESTS, LOGS, SOLUTION = "/tests", "/logs", "/solution"
PRIMARY = "reward"
SHOWN = 8_000
"""Characters of a command's output that the model is shown: the last ones."""
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

    def copy(self, source: Path, path: str, *, executable: bool = False) -> None:
        """Copy a file of this machine, or what a folder of it holds. ``executable``: even those that are not
        so on this machine.
        """
        for file in [source] if source.is_file() else sorted(source.rglob("*")):
            if file.is_file():
                target = PurePosixPath(path, file.relative_to(source).as_posix())
                self.write(str(target), file.read_bytes(), executable=executable or os.access(file, os.X_OK))

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
        box.section = box.section.model_copy(update={"seconds": self.task.config.verifier.timeout_sec})
        self._place(TESTS)
        self.copy(self.task.folder / "tests", TESTS)
        logs = self._place(LOGS)
        for name in ("agent", "verifier", "artifacts"):
            box.add_folder(f"{logs}/{name}")
        env = self.task.variables("verifier")
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
    async with Sandbox(seconds=found.config.environment.build_timeout_sec, **found.limits()) as box:
        for place in found.places.values():
            _made(box, place)
        box.places = found.places
        one = Trial(found, box)
        for step in found.steps:
            if isinstance(step, RunStep):
                done = await one.run(f"cd {shlex.quote(step.where)}\n{step.line}", env=step.env)
                if not done.ok:
                    said = done.ended or done.stderr.strip()[-200:]
                    raise found.refused(f"its line RUN {step.line[:80]} fails without its image: {said}")
            else:
                for source, path in step.files:
                    _copy(one, source, path, step.executable)
        box.section = box.section.model_copy(update={"seconds": found.config.agent.timeout_sec})
        yield one


def _made(box: Sandbox, name: str) -> None:
    try:
        box.add_folder(name)
    except FileExistsError:
        pass  # the working folder lies in a place of its own, or is one


def _copy(one: Trial, source: Path, path: str, executable: bool) -> None:
    try:
        one.copy(source, path, executable=executable)
    except IsADirectoryError:  # as in Docker, a file is put into the folder that is there
        one.copy(source, f"{path}/{source.name}", executable=executable)


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
    made = [HarborTask(one) for one in found]
    noted: dict[str, list[str]] = defaultdict(list)
    for one in made:
        for note in dict.fromkeys(one.notes()):
            noted[note].append(one.folder.name)
    for note, those in noted.items():
        _LOG.warning("%s: task.toml: %s (tasks: %d; the first: %s)", root, note, len(those), those[0])
    return [
        {
            "folder": str(one.folder),
            "name": one.folder.name,
            "instruction": one.text("instruction.md"),
            "max_turns": max_turns,
        }
        for one in made
    ]


@agl.rollout
async def play(task: Mapping[str, Any], llm: LLM) -> float:
    """Work on a task with the tool ``bash`` until an answer calls none, and return the reward of its tests.
    When the turns or the time of the agent are used up, the task is graded as it stands.
    """
    async with trial(task) as one:
        try:
            async with asyncio.timeout(one.task.config.agent.timeout_sec):
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
