"""A store's server that runs out of file descriptors says so."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

SERVER = """
import asyncio, resource, sys
from agl_cluster.store.server import start

async def main():
    served = await start(sys.argv[1], port=0)
    print(served.url.rpartition(":")[2], flush=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, hard))
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await served.close()

asyncio.run(main())
"""


def test_a_server_without_file_descriptors_says_so_in_a_line(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path / "s.sqlite")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None and server.stderr is not None
    port = int(server.stdout.readline())
    connections = [socket.create_connection(("127.0.0.1", port), 10.0) for _ in range(60)]
    first = server.stderr.readline()
    for connection in connections:
        connection.close()
    _, rest = server.communicate("\n", timeout=300)
    assert "out of system resource" in first and "Too many open files" in first
    assert len(rest) < 2_000, rest[:2_000]
