"""A program of ``agent.command`` in a sandbox: what it sees of its attempt.

It has no network. Relay and collector of its attempt listen inside, on :data:`RELAY` and
:data:`COLLECTOR`: the sandbox opens these sockets and hands them out, so no other address answers. Its
environment is the sandbox's, with the variables that the program is given; Python programs are not
instrumented, and the relay reads their calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentlightning.runner.threads import in_thread
from agl_programs.attempts import REWARD_FILE
from agl_programs.commands.container import container_variables
from agl_programs.commands.folder import located
from agl_programs.sandbox import bubblewrap, files
from agl_programs.sandbox.run import Door, Ended, run
from agl_programs.sandbox.settings import SandboxSection

RELAY, COLLECTOR = 8801, 8802
"""Ports inside a sandbox."""
REWARD = ".agl-reward"
"""The file in the working folder into which a program may write its reward."""


async def run_boxed(
    section: SandboxSection,
    words: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    stdin: str | None,
    *,
    here: Path,
    copied: bool,
    own: Sequence[str],
    output_bytes: int,
    doors: Mapping[int, Door],
) -> Ended:
    """Run a program in ``folder``. ``here``: the folder of the run's description; a word that names a file in
    it lets the program read that file, unless files were ``copied``. ``own``: names of variables that it gets
    although a sandbox has its own. Afterwards nothing in the folder leads out of it.
    """
    found = located(words, here, Path(bubblewrap.FOLDER), copied=copied)
    named = [
        word for word, before in zip(found, words, strict=True) if word != before and Path(word).is_file()
    ]
    told = {name: variables[name] for name in container_variables(variables, own) if name != "AGL_HERE"}
    told[REWARD_FILE] = f"{bubblewrap.FOLDER}/{REWARD}"
    user = bubblewrap.new_user()
    await in_thread(files.give, folder, user)
    end = await run(
        section,
        found,
        {**bubblewrap.variables(), **told},
        folder,
        user,
        stdin=stdin,
        output_bytes=output_bytes,
        doors=doors,
        read=[*bubblewrap.readable(section.read, here), *named],
    )
    await in_thread(files.only_own_files, folder)
    return end
