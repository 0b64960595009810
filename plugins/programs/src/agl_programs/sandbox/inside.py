"""Runs inside a sandbox before its command, and becomes the command. It needs the standard library only.

It sets the limits, gives up root's rights, opens the doors (sockets on loopback that the sandbox's owner
listens on, handed out as file descriptors), says that the sandbox stands, and executes.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from typing import Any

NOT_FOUND, NOT_EXECUTED = 127, 126


def main(given: dict[str, Any]) -> None:
    """``given``: ``ports`` and ``control`` (a socket to the sandbox's owner), ``limits`` (name → number),
    ``user`` (``None``: it stays), ``folder`` (the working folder), ``words``.
    """
    owner = socket.socket(fileno=given["control"])
    os.set_inheritable(owner.fileno(), False)
    os.closerange(3, owner.fileno())  # the command has its three streams, and nothing of ours
    os.closerange(owner.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="utf-8") as file:
        file.write("1000")  # if memory ends all the same, the machine ends the sandbox first
    for name, number in given["limits"].items():
        kind = getattr(resource, f"RLIMIT_{name}")
        hard = resource.getrlimit(kind)[1]
        number = number if hard == resource.RLIM_INFINITY else min(number, hard)
        # of processor time, the second more is what tells the limit's signal from any other end
        resource.setrlimit(kind, (number, hard if name == "CPU" else number))
    if given["user"] is not None:
        os.setgroups([])
        os.setresgid(given["user"], given["user"], given["user"])
        os.setresuid(given["user"], given["user"], given["user"])
    os.chdir(given["folder"])
    os.environ["PWD"] = given["folder"]
    os.umask(0o022)
    with contextlib.suppress(OSError):  # a home that the command was told of need not exist
        os.makedirs(os.environ["HOME"], exist_ok=True)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a command would go on to
        signal.signal(number, signal.SIG_DFL)
    words = given["words"]
    if given["ports"]:
        doors = [socket.create_server(("127.0.0.1", port)) for port in given["ports"]]
        socket.send_fds(owner, [b"d"], [door.fileno() for door in doors])
    owner.send(b"s")  # what went wrong before is the sandbox's fault, and from now on the command's
    try:
        os.execvp(words[0], words)
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTED)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
