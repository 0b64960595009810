"""Agent Lightning 1.0.2's gateway under the load of ``bench/gateway.py``, in an environment of its own.

``install`` makes ``.venvs/agent_lightning`` (it needs Python 3.12 or newer). Its interpreter runs this file
isolated (``-I``), so that its package ``agentlightning`` is not taken for ours. That gateway keeps its
records in memory and refuses streams; what is measured is whole chat completions in training mode.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

VERSION = "1.0.2"
FOLDER = Path(__file__).resolve().parents[1] / ".venvs" / "agent_lightning"
PYTHONS = ("python3.12", "python3.13", "python3.14")
REQUIRES = (f"agentlightning=={VERSION}", "uvicorn==0.52.0", "fastapi==0.136.3")
ROLLOUTS = 64


class NotInstalled(Exception):
    """It cannot be measured here; the text says why."""


def install() -> Path:
    """The interpreter of the environment, which is made if it is not there."""
    python = FOLDER / "bin" / "python"
    if python.exists() and runs([str(python), "-I", "-c", "import agentlightning.server.app"]):
        return python
    for name in PYTHONS:
        found = shutil.which(name)
        if found and runs([found, "-c", ""]):
            break
    else:
        raise NotInstalled(f"Agent Lightning {VERSION} needs {PYTHONS[0]} or newer on the PATH")
    shutil.rmtree(FOLDER, ignore_errors=True)
    for command in (
        [found, "-m", "venv", str(FOLDER)],
        [str(python), "-m", "pip", "install", "-q", *REQUIRES],
    ):
        made = subprocess.run(command, capture_output=True, encoding="utf-8")
        if made.returncode:
            raise NotInstalled(f"{' '.join(command)}: {(made.stderr or made.stdout).strip()[-300:]}")
    return python


def runs(command: list[str]) -> bool:
    """Whether ``command`` ends with status 0."""
    return subprocess.run(command, capture_output=True).returncode == 0


def serve(engine: str) -> None:
    """Serve until stdin closes; each line on stdin is answered with CPU seconds, memory and records."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # it logs a line a call there, as it ships
    import uvicorn

    from agentlightning.server.app import create_app  # type: ignore[import-not-found]
    from agentlightning.server.store import _events  # type: ignore[import-not-found]

    proxy = {"model_name": "bench", "train": {"temperature": 1}, "val": {"temperature": 1}}
    app = create_app({"key": "", "default_proxy": proxy})
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    post(f"{url}/api/models", [{"model": "bench", "endpoint": engine}])
    made = post(f"{url}/api/rollouts", [{"input": {"i": i}} for i in range(ROLLOUTS)])
    paths = [f"{url}/proxy/rollout/{one['rollout_id']}/attempt/0/mode/train/openai/v1" for one in made]
    print(json.dumps({"url": url, "urls": paths, "keys": ["none"] * len(paths)}), file=told, flush=True)
    while sys.stdin.readline():
        used = resource.getrusage(resource.RUSAGE_SELF)
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        stored = sum(len(events) for attempts in _events.values() for events in attempts.values())
        found = {
            "cpu": used.ru_utime + used.ru_stime,
            "rss": pages * 4096 / 2**20,
            "stored": stored,
            "disk": 0,
        }
        print(json.dumps(found), file=told, flush=True)


def post(url: str, body: Any) -> Any:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read() or b"null")


if __name__ == "__main__":
    serve(sys.argv[1])
