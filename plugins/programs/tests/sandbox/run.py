"""Tries every escape of ``escapes.py`` in a real sandbox, as root and as another user.

    python plugins/programs/tests/sandbox/run.py [NAME …]        (or: make test-sandbox)

The judge holds what must not be reached: a server on all addresses of this machine, sockets, files with a
secret word, the word in its environment, a sandbox of another rollout. An escape has escaped if it says so,
if the word is in its output, if a reader of its folder got a file from outside, or if it was not ended by the
limit that it passes. The last line is one JSON object. Exit status 1 if anything escaped, left a process, or
could not be tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
NOBODY = 65534
_SHOW = (
    'mount --bind "$1" "$2" && shift 2 && '
    f'exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups -- "$@"'
)
"""Mounts a folder at another place and goes on as nobody; in a mount namespace that ends with it."""
LIMITS: dict[str, Any] = {
    "memory": 256 << 20, "processes": 24, "disk": 16 << 20, "files": 2000, "seconds": 120.0
}  # fmt: skip
ENDED = {
    "memory_of_many": "memory", "shared_memory": "memory", "disk_many_files": "disk",
    "disk_without_names": "disk", "disk_without_names_in_tmp": "disk", "disk_in_a_closed_folder": "disk",
    "disk_of_a_hidden_process": "disk", "disk_of_a_thread": "disk",
    "many_empty_files": "disk", "many_empty_files_in_memory": "disk",
    "endless": "seconds", "processor_time": "cpu",
}  # fmt: skip
"""Escapes that only a limit ends → that limit."""
SPECIAL = {"endless": {"seconds": 2.0}, "processor_time": {"cpu_seconds": 2.0}}
SIGNALLED = ("signal_to_the_parent",)
"""Escapes that may kill themselves."""


@contextlib.contextmanager
def outside(word: str, mark: str) -> Iterator[dict[str, Any]]:
    """Make what must not be reached; yield the facts about it."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agl-judge-")))
        store, answer, inner = folder / "store.sqlite", folder / "answer.json", folder / "gateway.sock"
        for file in (store, answer):
            file.write_text(word)
            file.chmod(0o644)
        folder.chmod(0o755)
        abstract = f"agl-{mark}-{os.getpid()}"
        everywhere = stack.enter_context(socket.create_server(("", 0)))
        unix = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        unix[0].bind(str(inner))
        unix[1].bind("\0" + abstract)
        inner.chmod(0o777)
        for one in unix:
            one.listen()
        for one in (everywhere, *unix):
            threading.Thread(target=_accept, args=(one,), daemon=True).start()
        yield {
            "port": everywhere.getsockname()[1],
            "address": _own_address(),
            "abstract": abstract,
            "socket": str(inner),
            "files": [str(answer), str(store), "/etc/shadow"],
            "word": word,
            "mark": mark,
            "judge": os.getpid(),
            "files_limit": LIMITS["files"],
            **{name: LIMITS[name] for name in ("memory", "processes", "disk")},
        }


def _accept(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listening.accept()[0].close()


def _own_address() -> str:
    """An address of this machine beside loopback, if it has one."""
    import psutil

    found = (one for some in psutil.net_if_addrs().values() for one in some if one.family == socket.AF_INET)
    return next((one.address for one in found if not one.address.startswith("127.")), "127.0.0.1")


def marked(mark: str) -> list[int]:
    """Processes of this machine whose command line holds the mark."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{name}/cmdline").read_bytes() and int(name) != os.getpid():
                found.append(int(name))
    return found


async def attempt(name: str, facts: dict[str, Any]) -> tuple[str | None, int, str | None]:
    """Try one escape; return how it escaped, how many processes it left, and why it was not tried."""
    from agl_programs.sandbox import watch
    from agl_programs.sandbox.box import OUTPUT_BYTES, Sandbox

    box = Sandbox(**{**LIMITS, **SPECIAL.get(name, {})})
    async with Sandbox() as other, box:
        other.write("theirs", facts["word"])
        told = json.dumps({**facts, "other": str(other._folder)})
        script = (HERE / "escapes.py").read_text()
        result = await box.run(
            [sys._base_executable, "-B", "escapes.py", name, told], files={"escapes.py": script}
        )
        left = marked(facts["mark"])
        for process in left:
            os.kill(process, signal.SIGKILL)
        folder = box._folder
        assert folder is not None
        reached = _said(result.stdout)
        way = reached.get("way") or _outside(name, facts, result, box)
        if (
            name.startswith("disk")
            and (size := watch.size_of([folder], 1 << 40, 1 << 30)) > 32 * LIMITS["disk"]
        ):
            way = way or f"{size:,} bytes in the folder"
    if folder.exists():
        way = way or "its folder was left"
    missing = None
    if name in ENDED:
        if result.ended != ENDED[name]:
            way = way or f"ended by {result.ended or 'itself'}, not by {ENDED[name]}"
    elif "way" not in reached and not result.ended and name not in SIGNALLED:
        missing = f"status {result.status}: {result.stderr.strip()[-300:]}"
    assert len(result.stdout) <= OUTPUT_BYTES
    return way, len(left), missing


def _said(stdout: str) -> dict[str, Any]:
    for line in reversed(stdout.splitlines()):
        with contextlib.suppress(ValueError):
            return {"way": json.loads(line)}
    return {}


def _outside(name: str, facts: dict[str, Any], result: Any, box: Any) -> str | None:
    """What shows outside only: the word in the output, files of the run that changed, a reader that was led
    out of the folder.
    """
    if facts["word"] in result.stdout + result.stderr:
        return "the word in its output"
    if any(Path(path).read_text() != facts["word"] for path in facts["files"][:2]):
        return "a file of the run was changed"
    for path in ("answer", "relative", "folder/answer.json", "environ", "hard"):
        try:
            box.read(path)
        except (OSError, ValueError):
            continue
        return f"a reader of {path!r} got it"
    if name == "links_out" and not os.path.islink(box._folder / "answer"):
        return "it made no link, so nothing was tried"
    return None


async def judge(names: Sequence[str], user: str) -> dict[str, Any]:
    """Try all escapes as the present user."""
    from agl_programs.sandbox import bubblewrap

    from agentlightning.child_environment import hide_secrets

    hide_secrets()  # as a trainer does
    summary: dict[str, Any] = {
        "escapes_tried": 0,
        "escaped": 0,
        "leaked_processes": 0,
        "ways": [],
        "not_tried": [],
    }
    with outside(os.environ["AGL_TRIAL_SECRET"], os.environ["AGL_TRIAL_MARK"]) as facts:
        for name in names:
            way, left, missing = await attempt(name, facts)
            print(f"{user:7} {name:26} {way or missing or 'closed'}", file=sys.stderr)
            summary["leaked_processes"] += left
            if missing is not None:
                summary["not_tried"].append(f"{user}: {name}: {missing}")
            else:
                summary["escapes_tried"] += 1
            if way is not None:
                summary["escaped"] += 1
                summary["ways"].append(f"{user}: {name}: {way}")
    summary["users"] = ["root" if bubblewrap.is_root() else user]
    return summary


def as_nobody(names: Sequence[str]) -> dict[str, Any]:
    """Start this script anew as a user without rights, by a Python that such a user may execute."""
    version = "{}.{}".format(*sys.version_info)
    for python in (sys.executable, f"/usr/local/bin/python{version}", f"/usr/bin/python{version}"):
        try:
            rights: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}
            subprocess.run([python, "-c", "import json"], check=True, capture_output=True, **rights)
        except (OSError, subprocess.CalledProcessError):
            continue
        with tempfile.TemporaryDirectory(prefix="agl-shown-") as shown:
            Path(shown).chmod(0o755)
            # The checkout may lie where nobody may go, as in root's home: it is shown at another place.
            path = os.pathsep.join(one.replace(str(ROOT), shown, 1) for one in sys.path if one)
            variables = {**os.environ, "PYTHONPATH": path, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
            script = str(HERE / "run.py").replace(str(ROOT), shown, 1)
            done = subprocess.run(
                ["unshare", "--mount", "sh", "-c", _SHOW, "sh", str(ROOT), shown, python, script, *names],
                stdout=subprocess.PIPE, text=True, env=variables, cwd="/",
            )  # fmt: skip
        with contextlib.suppress(ValueError, IndexError):
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
        return {"not_tried": [f"nobody: {python} ended with status {done.returncode}"]}
    return {"not_tried": [f"nobody: no Python {version} that another user may execute"]}


def main(names: Sequence[str]) -> int:
    """Try the escapes as this user, and as nobody if this user is root."""
    from agl_programs.sandbox import bubblewrap

    from plugins.programs.tests.sandbox.escapes import ESCAPES

    chosen = [name for name in ESCAPES if not names or name in names]
    root = os.geteuid() == 0
    summary = asyncio.run(judge(chosen, "root" if root else "nobody"))
    if root:
        other = as_nobody(chosen)
        for key, value in other.items():
            summary[key] += value
        if not bubblewrap.is_root():
            summary["not_tried"].append("root: this root has not the rights to become another user")
    print(json.dumps(summary))
    return 1 if summary["escaped"] or summary["leaked_processes"] or summary["not_tried"] else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    if "AGL_TRIAL_MARK" not in os.environ:
        mark, word = (f"trial-{secrets.token_hex(8)}" for _ in range(2))
        os.execve(
            sys.executable, [sys.executable, *sys.argv],
            {**os.environ, "AGL_TRIAL_MARK": mark, "AGL_TRIAL_SECRET": word},
        )  # fmt: skip
    sys.exit(main(sys.argv[1:]))
