"""Agents with vices, for worker processes too: importable. A task names the vice; the rest is honest."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import math
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from fractions import Fraction
from typing import Any

import aiohttp
import openai
from e2e.bad import ask

import agentlightning as agl
from agentlightning import LLM

Vice = Callable[[LLM], Awaitable[Any]]
VICES: dict[str, Vice] = {}
KEYS: list[str] = []
"""Of attempts that have ended."""


def vice(function: Vice) -> Vice:
    """Register under the function's name, in words."""
    VICES[function.__name__.replace("_", " ")] = function
    return function


async def agent(task: dict[str, Any], llm: LLM) -> Any:
    """One good call, then the vice; without one, reward 1."""
    await ask(llm)
    return await VICES[task["do"]](llm) if task["do"] in VICES else 1.0


# ---------------------------------------------------------------------------------------------- raises


class Odd(BaseException):
    """No Exception: ``except Exception`` lets it through."""


class Mute(Exception):
    """Cannot say what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Unpicklable(Exception):
    """Holds a lock, and has arguments that its constructor does not take."""

    def __init__(self, _: Any = None) -> None:
        super().__init__(threading.Lock(), "two")


@vice
async def raises(llm: LLM) -> None:
    raise RuntimeError("no such tool")


@vice
async def raises_a_base_exception(llm: LLM) -> None:
    raise Odd("beyond")


@vice
async def raises_generator_exit(llm: LLM) -> None:
    raise GeneratorExit


@vice
async def raises_stop_iteration(llm: LLM) -> None:
    raise StopAsyncIteration("nothing left")


@vice
async def raises_a_group(llm: LLM) -> None:
    raise ExceptionGroup("several", [ValueError("a"), ExceptionGroup("more", [KeyError("b")])])


@vice
async def raises_a_base_group(llm: LLM) -> None:
    raise BaseExceptionGroup("several", [Odd("a"), ValueError("b")])


@vice
async def raises_mutely(llm: LLM) -> None:
    raise Mute


@vice
async def raises_unpicklably(llm: LLM) -> None:
    raise Unpicklable


@vice
async def raises_at_length(llm: LLM) -> None:
    raise ValueError("x" * 10_000_000)


@vice
async def raises_half_a_character(llm: LLM) -> None:
    raise ValueError("half \ud800")


@vice
async def raises_without_end(llm: LLM) -> None:
    await raises_without_end(llm)


@vice
async def exits(llm: LLM) -> None:
    sys.exit(3)


@vice
async def cancels_itself(llm: LLM) -> None:
    raise asyncio.CancelledError


# --------------------------------------------------------------------------------------------- returns


class NoFloat:
    """Looks like a scalar of an array library, and is none."""

    shape = ()

    def item(self) -> float:
        raise RuntimeError("no number inside")


RESULTS: dict[str, Any] = {
    "nan": math.nan,
    "inf": -math.inf,
    "a string": "1.0",
    "a huge int": 10**400,
    "a huge fraction": Fraction(10**400, 3),
    "complex": 1 + 2j,
    "junk": [1, "two", None],
    "a dict": {"reward": 1.0},
    "bytes": b"1",
    "a type": float,
    "an agent": agent,
    "no scalar": NoFloat(),
    "a nan item": [math.nan],
}


def _returns(name: str) -> None:
    async def give(llm: LLM) -> Any:
        return RESULTS[name]

    VICES[f"returns {name}"] = give


for _name in RESULTS:
    _returns(_name)


# ----------------------------------------------------------------------------------------------- emits


@vice
async def emits_nan(llm: LLM) -> None:
    agl.emit_reward(math.nan)


@vice
async def emits_what_has_no_json_form(llm: LLM) -> float:
    agl.emit_object(object())
    agl.emit_annotation({"x": {1, 2}, "y": math.nan})
    return 1.0


@vice
async def emits_outside(llm: LLM) -> None:
    contextvars.Context().run(agl.emit_reward, 9.0)  # as in a thread that knows no attempt


# ----------------------------------------------------------------------------------------------- hangs


@vice
async def sleeps(llm: LLM) -> None:
    await asyncio.Event().wait()


@vice
async def ignores_being_cancelled(llm: LLM) -> float:
    for _ in range(100):
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            continue
    GONE_ON.append(True)
    return 1.0


GONE_ON: list[bool] = []
"""Who ignored being cancelled, and came to an end."""


@vice
async def sleeps_in_a_thread(llm: LLM) -> None:
    await asyncio.to_thread(lambda: RELEASE.wait(20) or RELEASE.set())


RELEASE = threading.Event()
"""Ends the threads that sleep; set when one has."""


@vice
async def holds_the_gil(llm: LLM) -> float:
    return float(sum(range(10**11)))


# ------------------------------------------------------------------------------------- processes, files


@vice
async def exits_hard(llm: LLM) -> None:
    os._exit(7)


@vice
async def closes_its_files(llm: LLM) -> float:
    sys.stdin.close()
    sys.stdout.close()
    for number in (0, 1, 2):
        os.close(number)
    return 1.0


@vice
async def forks(llm: LLM) -> float:
    os.fork()
    return 1.0  # so says the other process too


@vice
async def forks_and_exits(llm: LLM) -> float:
    if not (child := os.fork()):
        os._exit(3)
    os.waitpid(child, 0)
    return 1.0


def _nothing() -> None:
    """What a process of multiprocessing does."""


@vice
async def uses_multiprocessing(llm: LLM) -> float:
    process = multiprocessing.get_context("fork").Process(target=_nothing)
    process.start()
    await asyncio.to_thread(process.join)
    return float(process.exitcode == 0)


@vice
async def leaves_a_process_behind(llm: LLM) -> float:
    LEFT.append(subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL))
    return float(LEFT[-1].pid)


LEFT: list[subprocess.Popen[bytes]] = []
"""Processes that an agent of this process left behind."""


@vice
async def changes_folder_and_environment(llm: LLM) -> float:
    os.chdir("/")
    os.environ.update(OPENAI_API_KEY="wrong", OPENAI_BASE_URL="http://127.0.0.1:9/v1", AGL_SECRET="x" * 32)
    return 1.0


# ------------------------------------------------------------------------------------ talks to the gateway


@vice
async def calls_in_parallel(llm: LLM) -> float:
    body = {"model": llm.model, "messages": [{"role": "user", "content": "hello"}]}
    async with aiohttp.ClientSession() as http:
        answers = await asyncio.gather(*(_post(http, llm, llm.api_key, body) for _ in range(500)))
    return float(answers == [200] * 500)


LATE: list[Any] = []
"""What a thread got that went on after its attempt had ended."""
_go, _done = threading.Event(), threading.Event()


@vice
async def goes_on_after_its_end(llm: LLM) -> float:
    """The first time, leave a thread behind; the second time let it go on, and wait for it."""
    if not KEYS:
        KEYS.append(llm.api_key or "")
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(_later, llm), daemon=True).start()
        return 1.0
    _go.set()
    await asyncio.to_thread(_done.wait, 10)
    return 1.0


def _later(llm: LLM) -> None:
    _go.wait(20)
    try:
        agl.emit_reward(9.0)
    except RuntimeError as error:
        LATE.append(str(error).partition(" attempt ")[0])
    try:
        asyncio.run(ask(llm))
    except openai.APIStatusError as error:
        LATE.append(error.status_code)
    _done.set()


@vice
async def attacks(llm: LLM) -> float:
    """Everything a client can do wrong; the statuses that come back."""
    assert llm.api_key is not None
    forged = llm.api_key[:-2] + ("AA" if llm.api_key[-2:] != "AA" else "BB")
    good = {"model": llm.model, "messages": [{"role": "user", "content": "hello"}]}
    huge = {**good, "messages": [{"role": "user", "content": "x" * 40_000_000}]}
    async with aiohttp.ClientSession() as http:
        said = {
            "wrong key": await _post(http, llm, "sk-1234", good),
            "no key": await _post(http, llm, None, good),
            "forged key": await _post(http, llm, forged, good),
            "40 MB": await _post(http, llm, llm.api_key, huge),
            "no JSON": await _post(http, llm, llm.api_key, b'{"model": "x", '),
            "no UTF-8": await _post(http, llm, llm.api_key, b'{"model": "\xff"}'),
            "a list": await _post(http, llm, llm.api_key, b"[]"),
            "empty": await _post(http, llm, llm.api_key, b""),
            "text/html": await _post(http, llm, llm.api_key, good, "text/html"),
            "another route": await _post(http, llm, llm.api_key, good, route="/embeddings"),
        }
    agl.emit_object(said)
    return 1.0


async def _post(
    http: aiohttp.ClientSession,
    llm: LLM,
    key: str | None,
    body: Any,
    kind: str = "application/json",
    route: str = "/chat/completions",
) -> int:
    headers = {"Content-Type": kind, **({"Authorization": f"Bearer {key}"} if key else {})}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with http.post(llm.endpoint + route, data=io.BytesIO(data), headers=headers) as response:
        await response.read()
        return response.status
