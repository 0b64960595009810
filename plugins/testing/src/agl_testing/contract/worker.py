"""A worker process of the contract: run four concurrent attempts of a framework's agents, print their spans.

    python -m agl_testing.contract.worker FILE CLASS URL FIRST

``CLASS`` in ``FILE`` is an adapter's contract. The last line of stdout is JSON: ``[[number, spans], …]``.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path

import msgspec

from agentlightning.keys import CONTEXT_KEY
from agl_testing.contract.crowds import busy
from agl_testing.contract.hooks import AdapterHooks
from agl_testing.contract.recording import Recording


def load(file: str, name: str) -> AdapterHooks:
    """Return the contract in a test file, which need not be importable by name."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # annotations are resolved there
    spec.loader.exec_module(module)
    adapter: AdapterHooks = getattr(module, name)()
    return adapter


async def run(adapter: AdapterHooks, url: str, first: int) -> list[tuple[int, object]]:
    """Run four attempts with one client. Every second process streams."""
    adapter.instrumentor().instrument(raise_exception_on_conflict=True)
    adapter.prepare()
    recordings = [Recording(str(number), url) for number in range(first, first + 4)]
    client = adapter.client(url, CONTEXT_KEY)
    await busy(adapter, client, recordings, stream=bool(first // 4 % 2))
    await adapter.close(client)
    return [(first + place, recording.spans) for place, recording in enumerate(recordings)]


if __name__ == "__main__":
    file, name, url, first = sys.argv[1:]
    found = asyncio.run(run(load(file, name), url, int(first)))
    print("\n" + msgspec.json.encode(found).decode())
