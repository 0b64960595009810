"""A real vLLM in a process and an environment of its own: started, told to load other weights, ended.

Invariant: the process ends with the ``async with`` block, whatever happens inside it. What vLLM prints goes
to a log, whose end is shown where it does not start.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

PATIENCE = 300.0
"""Seconds vLLM may take to serve: half a minute on an idle machine, minutes on a busy one."""
NAME = "policy"
LENGTH = 1024
"""Tokens of prompt and answer together."""
FLAGS = (
    *("--served-model-name", NAME, "--dtype", "float32", "--max-model-len", str(LENGTH), "--enforce-eager"),
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--logprobs-mode", "processed_logprobs", "--max-num-seqs", "8"),
)
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_SERVER_DEV_MODE": "1",  # opens /collective_rpc and /reset_prefix_cache
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    # On, a tool call that the model begins of itself is finished under a grammar that no request names.
    "VLLM_ENFORCE_STRICT_TOOL_CALLING": "0",
}
_ANSWERED = re.compile(
    r'^http_requests_total\{handler="/v1/(?:chat/)?completions".*status="2xx"\} (\S+)', re.M
)
_ABORTED = re.compile(r'^vllm:request_success_total\{.*finished_reason="abort".*\} (\S+)', re.M)


class VLLM:
    """What a running vLLM is asked beside completions."""

    def __init__(self, root: str, session: aiohttp.ClientSession) -> None:
        self.root = root
        self._session = session

    @property
    def url(self) -> str:
        """Base URL for an OpenAI client."""
        return f"{self.root}/v1"

    async def answered(self) -> int:
        """Requests for completions that were answered to their end, by vLLM's own counts."""
        async with self._session.get(f"{self.root}/metrics") as response:
            text = await response.text()
        answered, aborted = (
            sum(float(n) for n in pattern.findall(text)) for pattern in (_ANSWERED, _ABORTED)
        )
        return int(answered - aborted)

    async def get(self, path: str, root: str | None = None) -> Any:
        """A GET's JSON, of vLLM or of another server at ``root``."""
        url, accept = (root or self.root) + path, {"Accept": "application/json"}
        async with self._session.get(url, headers=accept) as response:
            response.raise_for_status()
            return await response.json()

    async def post(self, path: str, body: Any = None) -> tuple[int, str]:
        """Status and text of a POST."""
        async with self._session.post(self.root + path, json=body) as response:
            return response.status, await response.text()

    async def reload(self, weights: Path) -> float:
        """Load the weights of a model folder into the running engine; seconds. No cache of old ones stays."""
        begin = time.perf_counter()
        load = {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}}
        for path, body in (
            ("/pause", None),
            ("/collective_rpc", load),
            ("/reset_prefix_cache", None),
            ("/resume", None),
        ):
            status, text = await self.post(path, body)
            if status != 200:
                raise RuntimeError(f"vLLM answered POST {path} with HTTP {status}: {text[:500]}")
        return time.perf_counter() - begin


@asynccontextmanager
async def vllm(python: Path, model: Path, log: Path, *flags: str) -> AsyncIterator[VLLM]:
    """vLLM on ``model``, serving it as :data:`NAME`. ``flags``: of its command line, beside :data:`FLAGS`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--host", "127.0.0.1", "--port", str(port), *FLAGS, *flags]
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=out, stderr=out, env=os.environ | SETTINGS, start_new_session=True
        )
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
            engine = VLLM(f"http://127.0.0.1:{port}", session)
            await _serving(engine, process, log, session)
            yield engine
    finally:
        await _end(process)


async def _serving(
    engine: VLLM, process: asyncio.subprocess.Process, log: Path, session: aiohttp.ClientSession
) -> None:
    """Wait until it serves; RuntimeError with the end of its log if it never does."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.returncode is None:
        try:
            async with session.get(f"{engine.root}/health") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass  # it does not listen yet
        await asyncio.sleep(0.25)
    what = "did not serve in time" if process.returncode is None else f"ended with {process.returncode}"
    raise RuntimeError(
        f"vLLM {what}; its last words:\n"
        + "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:])
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the server and the engine processes it began: they are one process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            await asyncio.wait_for(process.wait(), 10.0)
        except TimeoutError:
            print("vLLM did not end when asked; it is killed", file=sys.stderr)
