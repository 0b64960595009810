"""LangChain's chat model before a test's server, and how its agents are asked.

LangChain shares HTTP clients between models of the same address, and ports come back in later tests: each
model here has clients of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any


def chat_openai(url: str, retries: int = 0, **fields: Any) -> Any:
    """A ``ChatOpenAI`` that asks the server at ``url``."""
    import openai
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(
        model="policy",
        base_url=url,
        api_key="agl-context",
        max_retries=retries,
        http_client=openai.DefaultHttpxClient(),
        http_async_client=openai.DefaultAsyncHttpxClient(),
        **fields,
    )


async def close(model: Any) -> None:
    """Close its connections."""
    await model.root_async_client.close()
    model.root_client.close()


@asynccontextmanager
async def opened(url: str, **fields: Any) -> AsyncIterator[Any]:
    """A chat model for the length of a test."""
    model = chat_openai(url, **fields)
    try:
        yield model
    finally:
        await close(model)


def given(task: str) -> dict[str, Sequence[tuple[str, str]]]:
    """A task as a graph's input."""
    return {"messages": [("user", task)]}


async def finish(runnable: Any, task: str, stream: bool) -> Any:
    """A graph's last state; LangChain streams from the model where somebody listens to its tokens."""
    if not stream:
        return await runnable.ainvoke(given(task))
    last: Any = None
    async for mode, item in runnable.astream(given(task), stream_mode=["messages", "values"]):
        last = item if mode == "values" else last
    return last


async def ask(runnable: Any, task: str, stream: bool) -> str:
    """The last message."""
    return str((await finish(runnable, task, stream))["messages"][-1].content)
