"""The command line of bubblewrap (``bwrap``), which makes the namespaces of a sandbox.

Inside there are: ``/usr`` and what belongs to it, the parts of ``/etc`` that programs need, this Python, and
what ``read`` names, all read-only; the sandbox's folder at :data:`FOLDER`, and a ``/tmp``, both writable.
Everything else of the file system does not exist there. It has processes, a host name, shared
memory and, unless told otherwise, a network of its own.

Invariant: no command moves what the next one's mounts go to or come from. bubblewrap follows links, so each
step of such a path that lies in a writable folder is a mount itself, which cannot be renamed or removed.

As root, the command becomes a user that nothing else on this machine is: the limit on processes does not bind
root, and a file that only root may read stays closed. Otherwise a user namespace does this.
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from agentlightning.types import UsageError
from agl_programs.sandbox import inside
from agl_programs.sandbox.settings import SandboxSection

FOLDER, HOME = "/sandbox", "/tmp/home"
SHARED_MEMORY = 64 << 20
"""Bytes of ``/dev/shm``."""
OPEN_FILES = 1024
_ETC = (
    "alternatives", "ca-certificates", "ca-certificates.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "magic", "mime.types", "perl", "pki", "protocols", "python3", "python3.11", "services",
    "ssl", "terminfo", "timezone", "java-17-openjdk", "crypto-policies",
)  # fmt: skip
_NEEDED_CAPABILITIES = (1 << 21) | (1 << 19) | (1 << 7) | (1 << 6) | (1 << 1) | 1
"""CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SETUID, CAP_SETGID, CAP_DAC_OVERRIDE, CAP_CHOWN. Without the second and
the fifth, it could not look at what another user's processes and folders use."""
_USERS = 10_000
PREFIXES = tuple(
    prefix for prefix in dict.fromkeys((sys.base_prefix, sys.prefix)) if not f"{prefix}/".startswith("/usr/")
)
"""This Python and its packages, where they are not in ``/usr``."""


def executable() -> str:
    """Return the path of bubblewrap. Raise :class:`.UsageError` if it is missing."""
    if (found := shutil.which("bwrap")) is None:
        raise UsageError(
            "sandbox: bubblewrap (bwrap) is not installed here: apt-get install bubblewrap, or "
            "dnf install bubblewrap; or name a container's image (sandbox.image). Nothing is run without"
        )
    return found


@functools.cache
def check() -> None:
    """Raise :class:`.UsageError` if bubblewrap is missing here, or the machine does not allow it to work."""
    words = [executable(), "--unshare-pid", "--unshare-net", "--unshare-ipc"]
    words += [] if is_root() else ["--unshare-user"]
    words += ["--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run(
        words, capture_output=True, encoding="utf-8", env={"PATH": os.environ.get("PATH", "")}
    )
    if done.returncode:
        raise UsageError(
            f"sandbox: bubblewrap cannot make namespaces here ({done.stderr.strip()[:200]}): allow user "
            "namespaces (sysctl kernel.unprivileged_userns_clone=1, or kernel.apparmor_restrict_"
            "unprivileged_userns=0), in a container start it with them; or name an image (sandbox.image)"
        )


def readable(paths: Iterable[str], folder: Path) -> list[str]:
    """Return the whole paths of what a sandbox may read beside the system; those that are relative begin at
    ``folder``. Raise :class:`.UsageError` for one that is not there, and for the root of the machine.
    """
    found = [Path(os.path.normpath(folder / Path(path).expanduser())) for path in paths]
    if missing := [str(path) for path in found if not path.exists()]:
        raise UsageError(f"sandbox.read: there is no {', '.join(missing)}")
    if whole := [str(path) for path in found if path.resolve() == Path("/")]:
        raise UsageError(
            f"sandbox.read: {whole[0]} is the root of this machine, which no sandbox may read: name the "
            "files and folders that the command needs"
        )
    return list(map(str, found))


@functools.cache
def is_root() -> bool:
    """Whether this process may become another user."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return False
    held = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
    return os.geteuid() == 0 and held & _NEEDED_CAPABILITIES == _NEEDED_CAPABILITIES


def new_user() -> int | None:
    """Return the number of a user that nothing on this machine is; ``None``: this process cannot become one.
    Each sandbox has its own, because the limit on processes counts those of a user.
    """
    if not is_root():
        return None
    ends = (int(line.split()[0]) + int(line.split()[2]) for line in _lines("/proc/self/uid_map"))
    return min(max(ends), 1 << 31) - 2 - random.randrange(_USERS)


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def variables() -> dict[str, str]:
    """Return the environment of every sandbox: nothing of this process's own."""
    folders = [f"{prefix}/bin" for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))]
    path = os.pathsep.join([*folders, "/usr/local/bin", "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": HOME, "TMPDIR": "/tmp", "LANG": "C.UTF-8", "USER": "sandbox"}


def data(user: int, *, network: bool) -> dict[str, bytes]:
    """Return the files that are made for a sandbox, by path: those that would name this machine's users."""
    made = {
        "/etc/passwd": f"sandbox:x:{user}:{user}::{HOME}:/bin/sh\n",
        "/etc/group": f"sandbox:x:{user}:\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
        "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    }
    if network:
        made["/etc/resolv.conf"] = "\n".join(_lines("/etc/resolv.conf")) + "\n"
    return {path: text.encode() for path, text in made.items()}


def limits(section: SandboxSection) -> dict[str, int]:
    """Return the limits of each process, by the name of its resource. ``DATA`` is memory that it may write:
    address space that is only reserved, as Node and Java do, does not count.
    """
    found = {
        "DATA": int(section.memory),
        "NPROC": section.processes + (0 if is_root() else 1),  # the init of its namespace
        "FSIZE": int(section.disk),
        "NOFILE": OPEN_FILES,
        "CORE": 1,  # with 0, a machine that pipes dumps into a program starts it
        "MSGQUEUE": 0,
    }
    if section.cpu_seconds is not None:
        found["CPU"] = max(1, round(section.cpu_seconds))
    return found


def words(
    section: SandboxSection,
    command: Sequence[str],
    *,
    folder: Path,
    user: int | None,
    files: Mapping[str, int],
    filter_fd: int,
    info_fd: int,
    control_fd: int,
    ports: Sequence[int],
    read: Sequence[str],
    places: Mapping[str, str],
    tmp: Path | None,
) -> list[str]:
    """Return the words that run ``command``. ``files``: path inside → descriptor of its content; the other
    descriptors are those of the filter, of bubblewrap's report, and of the socket for ``ports``. ``places``:
    path inside → folder of ``folder`` that stands there; commands start in the first. ``tmp``: the folder of
    ``/tmp``; none: it is memory.
    """
    outside = [*PREFIXES, *read]
    late = [prefix for prefix in PREFIXES if _below(prefix, places)]
    early, later = _held(outside, [] if tmp is None else ["/tmp"]), _held(late, list(places))
    return [
        executable(),
        "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try",
        *([] if section.network else ["--unshare-net"]),
        "--hostname", "sandbox", "--new-session", "--die-with-parent",
        *_rights(user),
        "--seccomp", str(filter_fd), "--info-fd", str(info_fd),
        *_tmp(section, tmp), *_holding(early),  # Python may lie in it
        *_folders([*PREFIXES, "/etc/x"]),
        *_system(), *_read_only(PREFIXES),
        "--proc", "/proc", "--dev", "/dev",
        "--perms", "1777", "--size", str(SHARED_MEMORY), "--tmpfs", "/dev/shm",
        *_data(files),
        *_folders(read),
        *_read_only(read),
        "--bind", str(folder), FOLDER,
        *(word for step in steps(places) for word in ("--bind", str(folder / step), f"{FOLDER}/{step}")),
        *_folders(list(places)),
        *(word for path, name in places.items() for word in ("--bind", str(folder / name), path)),
        *_holding(later), *_folders(late), *_read_only(late),
        *(word for path in [*early, *later, "/dev", "/"] for word in ("--remount-ro", path)),
        "--", sys._base_executable, "-I", "-S", "-c", Path(inside.__file__).read_text(encoding="utf-8"),  # type: ignore[attr-defined]
        json.dumps(_told(section, command, next(iter(places), FOLDER), user, control_fd, ports)),
    ]  # fmt: skip


def _data(files: Mapping[str, int]) -> list[str]:
    made = (("--perms", "0444", "--ro-bind-data", str(file), path) for path, file in files.items())
    return [word for one in made for word in one]


def _rights(user: int | None) -> list[str]:
    if user is not None:
        return ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    own = (
        ["--uid", str(os.getuid()), "--gid", str(os.getgid())]
        if os.getuid()
        else ["--uid", "1000", "--gid", "1000"]
    )
    return ["--unshare-user", "--disable-userns", *own, "--cap-drop", "ALL"]


def _system() -> list[str]:
    made = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            made += ["--symlink", os.readlink(path), str(path)]
        else:
            made += ["--ro-bind-try", str(path), str(path)]
    for name in _ETC:
        made += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return made


def _read_only(paths: Iterable[str]) -> list[str]:
    return [word for path in paths for word in ("--ro-bind", path, path)]


def _tmp(section: SandboxSection, folder: Path | None) -> list[str]:
    if folder is not None:
        return ["--bind", str(folder), "/tmp"]
    return ["--perms", "1777", "--size", str(int(section.disk)), "--tmpfs", "/tmp"]


def steps(places: Mapping[str, str]) -> list[str]:
    """Return the folders on the way to those of ``places``, each before what is in it. A sandbox mounts each
    upon itself.
    """
    found = (PurePosixPath(name) for name in places.values())
    return list(dict.fromkeys(str(step) for name in found for step in [*reversed(name.parents[:-1]), name]))


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _held(paths: Sequence[str], writable: Sequence[str]) -> list[str]:
    """The first steps to ``paths`` in folders that a command writes, but those that are mounts anyway."""
    found = {
        str(Path(folder, Path(path).relative_to(folder).parts[0])): None
        for path in paths
        for folder in writable
        if path != folder and Path(path).is_relative_to(folder)
    }
    return [path for path in found if path not in (*paths, *writable)]


def _holding(paths: Iterable[str]) -> list[str]:
    return [word for path in paths for word in ("--perms", "0755", "--tmpfs", path)]


def _folders(paths: Sequence[str]) -> list[str]:
    """The folders above the paths; those that bubblewrap makes by itself are closed to other users."""
    above = {str(folder): None for path in paths for folder in reversed(Path(path).parents[:-1])}
    return [word for folder in above for word in ("--perms", "0755", "--dir", folder)]


def _told(
    section: SandboxSection,
    command: Sequence[str],
    start: str,
    user: int | None,
    control_fd: int,
    ports: Sequence[int],
) -> dict[str, Any]:
    return {
        "words": list(command),
        "folder": start,
        "limits": limits(section),
        "user": user,
        "control": control_fd,
        "ports": list(ports),
    }
