"""Server-sent events: tokens from the engine's thread to a client, as they come.

Invariant: every token is in exactly one chunk, in order; a stream ends with ``data: [DONE]`` or with an
error object.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from agl_local.generation.engine import Engine
from agl_local.generation.request import Completion, PromptTooLong, Request, TokenEvent
from agl_local.http.answers import Answer, ChoiceStream
from agl_local.http.fields import ApiError

Item = tuple[int, TokenEvent | Future[list[Completion]]]


class Mailbox:
    """Carries items from any thread to queues of one event loop, waking it once for all there is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[tuple[asyncio.Queue[Item], Item]] = deque()
        self._woken = False

    def post(self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Item], item: Item) -> None:
        with self._lock:
            self._items.append((queue, item))
            if self._woken:
                return
            self._woken = True
        loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            items, self._items = self._items, deque()
            self._woken = False
        for queue, item in items:
            queue.put_nowait(item)


async def stream_answer(
    request: web.Request, engine: Engine, answer: Answer, mailbox: Mailbox
) -> web.StreamResponse:
    """Answer a call with ``stream: true``; errors of the request itself still come as a plain 400."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Item] = asyncio.Queue()
    post = partial(mailbox.post, loop, queue)
    futures = _submit(engine, answer, post)
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    try:
        await response.prepare(request)
        await _pump(response, answer, queue)
        await response.write_eof()
    finally:
        for future in futures:
            future.cancel()
    return response


def _submit(engine: Engine, answer: Answer, post: Callable[[Item], None]) -> list[Future[list[Completion]]]:
    call = answer.call
    sampling = replace(call.sampling, seed=call.seed)
    futures: list[Future[list[Completion]]] = []
    try:
        for i, prompt in enumerate(call.prompts):
            watch = partial(_post_event, post, i)
            futures.append(engine.submit(Request(prompt, sampling, call.n, on_token=watch)))
            futures[-1].add_done_callback(partial(_post_end, post, i))
    except ValueError as error:
        for future in futures:
            future.cancel()
        if isinstance(error, PromptTooLong):
            raise
        raise ApiError(400, str(error)) from error
    return futures


def _post_event(post: Callable[[Item], None], prompt: int, event: TokenEvent) -> None:
    post((prompt, event))


def _post_end(post: Callable[[Item], None], prompt: int, future: Future[list[Completion]]) -> None:
    if not future.cancelled():
        post((prompt, future))


async def _pump(response: web.StreamResponse, answer: Answer, queue: asyncio.Queue[Item]) -> None:
    call = answer.call
    streams = {(p, s): ChoiceStream(answer, p, s) for p in range(len(call.prompts)) for s in range(call.n)}
    await response.write(b"".join(_event(stream.opening()) for stream in streams.values()))
    left, tokens, reused = len(call.prompts), 0, 0
    while left:
        gathered: dict[tuple[int, int], list[TokenEvent]] = {}
        for prompt, item in await _drain(queue):
            if isinstance(item, TokenEvent):
                gathered.setdefault((prompt, item.index), []).append(item)
                continue
            left -= 1
            error = item.exception()
            if error is not None:
                await response.write(_event(ApiError(500, str(error), code="engine_error").body()))
                return
            reused += item.result()[0].reused
        tokens += sum(map(len, gathered.values()))
        out = b"".join(_event(streams[key].chunk(events)) for key, events in gathered.items())
        if out:
            await response.write(out)
    tail = b""
    if call.include_usage:
        usage = {**answer.head, "choices": [], "usage": answer.usage(tokens, reused)}
        tail = _event({**usage, "object": "chat.completion.chunk" if call.chat else "text_completion"})
    await response.write(tail + b"data: [DONE]\n\n")


async def _drain(queue: asyncio.Queue[Item]) -> list[Item]:
    """At least one item, and all that are there."""
    items = [await queue.get()]
    while not queue.empty():
        items.append(queue.get_nowait())
    return items


def _event(body: Any) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
