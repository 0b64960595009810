"""A judge client outside of a run: a gateway of its own, which serves judges for as long as it is open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from agentlightning.gateway import Gateway
from agentlightning.keys import Keys
from agentlightning.plugins.manager import Plugins, pick
from agentlightning.store.base import Store
from agentlightning.train.policies import fetch_pretrained, route
from agentlightning.train.serving import with_limits
from agentlightning.types import LLM, UsageError
from agentlightning.types.work import PolicyFolder, missing_policy_message
from agl_judge.client import JudgeClient


@asynccontextmanager
async def open_client(
    store: Store,
    judges: Mapping[str, LLM | PolicyFolder],
    run_id: str,
    plugins: Plugins,
    *,
    count: Callable[[str, float], None] = lambda what, n: None,
    **settings: Any,
) -> AsyncIterator[JudgeClient]:
    """Open a client of ``judges``: endpoints, or folders that the driver ``local`` serves. ``settings``:
    those of :class:`.JudgeClient`.
    """
    async with AsyncExitStack() as stack:
        gateway = Gateway(store, Keys(), plugins=plugins)
        stack.push_async_callback(gateway.stop)
        await gateway.start()
        for name, given in judges.items():
            if isinstance(given, LLM):
                gateway.add_route(route(name, given))
                continue
            folder = Path(given.path)
            if not folder.is_dir():
                fetched = fetch_pretrained(given.path, plugins)
                if fetched is None:
                    raise UsageError(f"judge {name!r}: {missing_policy_message(given.path)}")
                folder = fetched
            serve = pick(plugins.drivers, "driver", "local").serve
            assert serve is not None
            server = serve(PolicyFolder(folder, train=False, options=given.options, name=name))
            stack.push_async_callback(server.close)
            gateway.add_route(route(name, with_limits(await server.start(), folder)))
        yield await stack.enter_async_context(JudgeClient(store, gateway, run_id, count=count, **settings))


def read_judge(given: str, api_key: str | None, name: str = "judge") -> LLM | PolicyFolder:
    """Return the judge that a command names: ``MODEL@URL``, a folder, or a name of ``agl policy list``."""
    model, at, url = given.partition("@")
    if at and "://" in url:
        if not model:
            raise UsageError(f"--judge {given}: give the model in front of @")
        return LLM(endpoint=url, model=model, api_key=api_key)
    return PolicyFolder(given, train=False, name=name)
