"""A sandbox in a container of an image, by podman or docker: the same limits, set by the engine.

The engine's control groups limit memory and processes; the folder is watched as under bubblewrap. Whoever may
start containers of docker may become root of the machine: the engine is trusted, and the command is not.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentlightning.runner.threads import in_thread
from agl_programs.commands.child import ChildEnd, run_child
from agl_programs.commands.container import container_engine, kill_container
from agl_programs.commands.settings import ContainerSection
from agl_programs.sandbox import watch
from agl_programs.sandbox.bubblewrap import FOLDER, OPEN_FILES, SHARED_MEMORY, steps
from agl_programs.sandbox.run import Ended, as_signal
from agl_programs.sandbox.settings import SandboxSection


def found(section: SandboxSection) -> str:
    """Return the path of the engine's command. Raise :class:`.UsageError` if it is not installed."""
    return container_engine(ContainerSection(image=section.image or "", engine=section.engine))


def words(
    section: SandboxSection,
    name: str,
    command: Sequence[str],
    folder: Path,
    variables: Sequence[str],
    places: Mapping[str, str],
    tmp: Path,
) -> list[str]:
    """Return the words that run a command in a container called ``name``. ``variables``: names of those that
    it gets from the engine's environment. ``tmp``: the folder of its ``/tmp``.
    """
    size = int(section.disk)
    return [
        found(section), "run", "--rm", "--init", "--interactive", f"--name={name}",
        f"--network={'host' if section.network else 'none'}",
        "--read-only", f"--shm-size={SHARED_MEMORY}",
        f"--memory={int(section.memory)}", f"--memory-swap={int(section.memory)}",
        f"--pids-limit={section.processes + 1}",
        "--cap-drop=ALL", "--security-opt=no-new-privileges",
        f"--ulimit=fsize={size}:{size}", f"--ulimit=nofile={OPEN_FILES}:{OPEN_FILES}", "--ulimit=core=0:0",
        *([] if section.cpu_seconds is None else [f"--ulimit=cpu={round(section.cpu_seconds) or 1}"]),
        f"--volume={folder}:{FOLDER}", f"--volume={tmp}:/tmp", f"--workdir={next(iter(places), FOLDER)}",
        *(f"--volume={folder / step}:{FOLDER}/{step}" for step in steps(places)),
        *(f"--volume={folder / part}:{path}" for path, part in places.items()),
        *(f"--volume={path}:{path}:ro" for path in section.read),
        *(word for variable in sorted(variables) for word in ("--env", variable)),
        str(section.image), *command,
    ]  # fmt: skip


async def run(
    section: SandboxSection,
    command: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    *,
    stdin: str | None = None,
    output_bytes: int,
    tmp: Path,
    places: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command in a new container to its end, as :func:`.run.run` does."""
    name = f"agl-sandbox-{secrets.token_hex(8)}"
    given = words(section, name, command, folder, list(variables), places or {}, tmp)
    engine_variables = {
        key: os.environ[key] for key in ("PATH", "HOME", "XDG_RUNTIME_DIR") if key in os.environ
    }
    child = asyncio.create_task(
        run_child(given, {**engine_variables, **variables}, folder, stdin, output_bytes)
    )
    seen = watch.Watch(section, 0, folder, tmp)
    try:
        why = await _watched(section, child, seen)
        if why is not None:
            await kill_container(given[0], name)
        end = await child
    finally:
        if not child.done():
            await asyncio.shield(kill_container(given[0], name))
            child.cancel()
            await asyncio.gather(child, return_exceptions=True)
    return Ended(as_signal(end), why or seen.over_disk(last=True) or "", 0.0, 0)


async def _watched(section: SandboxSection, child: asyncio.Task[ChildEnd], seen: watch.Watch) -> str | None:
    until = None if section.seconds is None else asyncio.get_running_loop().time() + section.seconds
    while True:
        await asyncio.wait([child], timeout=watch.INTERVAL)
        if child.done():
            return None
        if until is not None and asyncio.get_running_loop().time() >= until:
            return watch.SECONDS
        if (why := await in_thread(seen.over_disk)) is not None:
            return why
