"""The command line that runs a program in a container, by podman or docker.

The container shares the host's network, because gateway and relay listen on loopback. The working folder is
mounted at :data:`MOUNT`, and variables are passed by name, so that no value stands in a command line that
other users of the machine can read. With an init process and ``--rm``, nothing of the container outlives the
program.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentlightning.child_environment import matches
from agentlightning.types import UsageError
from agl_programs.commands.settings import ContainerSection
from agl_programs.process import USUAL

MOUNT = "/work"
ENGINES = ("podman", "docker")


def container_engine(section: ContainerSection, path: str | None = None) -> str:
    """Return the path of the engine's command. Raise :class:`UsageError` if it is not installed. ``path``:
    the folders to search, by default those of ``PATH``.
    """
    wanted = ENGINES if section.engine == "auto" else (section.engine,)
    for name in wanted:
        if found := shutil.which(name, path=path):
            return found
    raise UsageError(
        f"container: {' or '.join(wanted)} is not installed here; install it, or leave `container` out to "
        "run the program as a process of this machine"
    )


def contained(
    section: ContainerSection,
    engine: str,
    words: Sequence[str],
    *,
    name: str,
    folder: Path,
    scratch: Path,
    variables: Iterable[str],
) -> list[str]:
    """Return the words that run ``words`` in a container called ``name``. ``variables``: names of the
    variables to pass on; their values are in the engine's environment. ``scratch``: a folder that keeps its
    path inside.
    """
    passed = [word for variable in sorted(variables) for word in ("--env", variable)]
    return [
        engine,
        "run",
        "--rm",
        "--init",
        "--interactive",
        f"--name={name}",
        "--network=host",
        f"--volume={folder}:{MOUNT}",
        f"--volume={scratch}:{scratch}",
        f"--workdir={MOUNT}",
        *passed,
        *section.options,
        section.image,
        *words,
    ]


def container_variables(variables: Iterable[str], own: Sequence[str]) -> list[str]:
    """Return the names of the variables for a container, which has its own ``PATH`` and the like: those that
    are not usual, and those of ``own``.
    """
    return [name for name in variables if matches(name, own) or not matches(name, USUAL)]


async def kill_container(engine: str, name: str) -> None:
    """Kill a container whose client was terminated. The command outlives a cancellation of its caller."""
    with contextlib.suppress(OSError):
        process = await asyncio.create_subprocess_exec(
            engine,
            "kill",
            name,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        await process.wait()
