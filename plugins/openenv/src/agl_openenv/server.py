"""Serve an environment's app on a free port of this machine: ``python -m agl_openenv.server module:app``.

The first line on stdout is JSON with its ``url``. It ends when its standard input is closed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading

import uvicorn

from agentlightning.webserver.loopback import address, loopback


def main(app: str) -> None:
    """Serve until the process that started this one is gone."""
    host = loopback()
    listening = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    threading.Thread(target=_end_with_input, daemon=True).start()
    config = uvicorn.Config(app, log_level="warning")
    config.load()  # exits with a message if the app cannot be imported
    server = uvicorn.Server(config)
    print(json.dumps({"url": f"http://{address(host)}:{listening.getsockname()[1]}"}), flush=True)
    sys.stdout = sys.stderr
    server.run(sockets=[listening])


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
