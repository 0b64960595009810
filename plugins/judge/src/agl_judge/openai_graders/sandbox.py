"""Runs the code of a ``python`` grader where it can reach nothing: by namespaces of Linux.

The code has process, user, mount and network namespaces of its own: no network, no process of ours, a root
with the interpreter, read-only, and an empty folder, no environment, and limits of time, memory, files and
output. Where the kernel refuses that, so does this module, by name: the code is never run otherwise.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shlex
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path
from subprocess import DEVNULL, run
from typing import Any

from agentlightning.types import UsageError
from agl_judge.desk import BadVerdict

SECONDS = 120
"""Documented limit of a python grader's run."""
MEMORY = 2 << 30
"""Bytes of memory, as documented."""
LONGEST_SOURCE = 256 << 10
"""Bytes of source, as documented."""
MOST_OUTPUT = 1 << 16
_MARK = "agl-grade:"
_PROGRAM = f"""
import json, sys
given = json.load(sys.stdin)
names = {{"__name__": "grader"}}
exec(compile(given["source"], "grader", "exec"), names)
print({_MARK!r} + json.dumps(float(names["grade"](given["sample"], given["item"]))))
"""


def _roots() -> list[str]:
    """Return the folders that an interpreter needs, outermost first."""
    wanted = {"/usr", "/lib", "/lib64", "/bin", sys.base_prefix, str(Path(sys.base_prefix).resolve())}
    there = sorted(one for one in wanted if os.path.isdir(one))
    return [one for one in there if not any(one != other and one.startswith(f"{other}/") for other in there)]


def _script(program: str, seconds: int) -> str:
    """Return the shell script that builds a root and runs the program in it."""
    lines = ["set -e", "root=$1", "mount -t tmpfs -o size=64m,mode=755 tmpfs $root"]
    for one in _roots():
        place = f"$root{shlex.quote(one)}"
        if os.path.islink(one):
            lines += [f"mkdir -p $(dirname {place})", f"ln -s {shlex.quote(os.readlink(one))} {place}"]
            continue
        lines += [
            f"mkdir -p {place}",
            f"mount --rbind {shlex.quote(one)} {place}",
            f"mount -o remount,bind,ro,nosuid,nodev {place}",
        ]
    python = shlex.quote(
        str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}")
    )
    limits = [f"ulimit -{what}" for what in (f"t {seconds}", f"v {MEMORY // 1024}", "f 2048", "n 64", "c 0")]
    lines += [
        "mkdir -p $root/work $root/proc",
        "cd $root",
        *limits,
        f"exec chroot $root env -i HOME=/work PATH=/usr/bin {python} -I -S -c {shlex.quote(program)}",
    ]
    return "\n".join(lines)


def _words(program: str, root: str, seconds: int) -> list[str]:
    unshare = shutil.which("unshare") or "unshare"
    spaces = (
        "--user",
        "--map-root-user",
        "--mount",
        "--net",
        "--pid",
        "--ipc",
        "--uts",
        "--fork",
        "--kill-child",
    )
    return [unshare, *spaces, "sh", "-c", _script(program, seconds), "sh", root]


@lru_cache(maxsize=1)
def why_not() -> str:
    """Return why code cannot be isolated here; empty where it can."""
    if not sys.platform.startswith("linux") or shutil.which("unshare") is None:
        return "it runs in namespaces of Linux, made by `unshare`, which is not here"
    probe = """
import os, socket
found = (os.listdir("/work"), os.path.exists("/etc/passwd"), os.path.exists("/tmp"), sorted(os.environ))
assert found == ([], False, False, ["HOME", "LC_CTYPE", "PATH"]) and os.getpid() < 5, (found, os.getpid())
try:
    socket.create_connection(("127.0.0.1", 9), 1)
except OSError as error:
    print("isolated" if error.errno == 101 else error)
"""
    with tempfile.TemporaryDirectory(prefix="agl-grader-") as root:
        done = run(_words(probe, root, 10), stdin=DEVNULL, capture_output=True, encoding="utf-8", timeout=60)
    if done.returncode == 0 and done.stdout.strip() == "isolated":
        return ""
    return f"this machine does not isolate it: {(done.stderr or done.stdout).strip()[-300:]}"


def require() -> None:
    """Raise :class:`UsageError` where code cannot be isolated."""
    if why := why_not():
        raise UsageError(f"a grader of the type python is code of somebody else: {why}")


async def grade(source: str, sample: Any, item: Any) -> float:
    """Return what ``grade(sample, item)`` of ``source`` returns. Raise :class:`BadVerdict` where it gives no
    number.
    """
    given = json.dumps({"source": source, "sample": sample, "item": item}).encode()
    with tempfile.TemporaryDirectory(prefix="agl-grader-") as root:
        process = await asyncio.create_subprocess_exec(
            *_words(_PROGRAM, root, SECONDS),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
            start_new_session=True,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(given), SECONDS + 10)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise BadVerdict(f"grade() took longer than {SECONDS} s") from None
    lines = out[-MOST_OUTPUT:].decode(errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith(_MARK)), None)
    if said is None:
        why = err.decode(errors="replace").strip().rpartition("\n")[2][:300] or f"status {process.returncode}"
        raise BadVerdict(f"grade() gave no number: {why}")
    found = float(json.loads(said.removeprefix(_MARK)))
    if not math.isfinite(found):
        raise BadVerdict(f"grade() gave no number: {found}")
    return found
