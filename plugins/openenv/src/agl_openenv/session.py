"""A session with an OpenEnv server, over its WebSocket (``/ws``): one reset, then one step for each action.

A message is ``{"type": "reset" | "step", "data": …}``, and its answer ``{"type": "observation", "data":
{"observation": …, "reward": …, "done": …}}`` or ``{"type": "error", "data": {"message": …, "code": …}}``
(openenv 0.10, ``core/env_server/types.py``). The server makes an environment for each connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from types import TracebackType
from typing import Any, NamedTuple

import aiohttp

CAPACITY_REACHED, INVALID_ACTION = "CAPACITY_REACHED", "VALIDATION_ERROR"
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0


class EnvironmentFailed(RuntimeError):
    """An episode that the environment's server could not begin, go on with, or give a reward for."""


def unreachable(url: str, error: OSError) -> str:
    """Return the message for a server that is not there."""
    return (
        f"no server of an environment can be reached at {url} ({error.strerror}): start it, or mend the "
        "address, `environment` of agl_openenv:tasks"
    )


class RefusedAction(ValueError):
    """An action that the environment's schema does not allow. The episode goes on."""


class Step(NamedTuple):
    """What the environment answers to a reset or an action."""

    observation: dict[str, Any]
    reward: float | None
    done: bool


class Session:
    """One episode at the server at ``url`` (``http://`` or ``https://``).

    ``message_seconds``: how long one answer may take. ``capacity_seconds``: how long to wait for a free
    session of a server that has only so many.
    """

    def __init__(self, url: str, message_seconds: float = 60.0, capacity_seconds: float = 300.0) -> None:
        self.url = url.rstrip("/")
        self.message_seconds, self.capacity_seconds = message_seconds, capacity_seconds
        self._http = aiohttp.ClientSession()
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._hang_up()
        await self._http.close()

    async def action_schema(self) -> dict[str, Any]:
        """Return the JSON schema of an action, without ``metadata``, which no model is asked for."""
        try:
            async with self._http.get(f"{self.url}/schema") as response:
                response.raise_for_status()
                schema = dict((await response.json())["action"])
        except aiohttp.ClientConnectorError as error:
            raise EnvironmentFailed(unreachable(self.url, error)) from error
        except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
            raise EnvironmentFailed(f"{self.url}/schema gives no schema of actions: {error!r}") from error
        fields = dict(schema.get("properties") or {})
        fields.pop("metadata", None)
        return {**schema, "properties": fields}

    async def reset(self, **arguments: Any) -> Step:
        """Begin an episode. A server without a free session is asked again, until it has one."""
        until, wait = time.monotonic() + self.capacity_seconds, _FIRST_WAIT
        while True:
            kind, data = await self._ask("reset", arguments)
            if kind == "observation":
                return self._step(data)
            if data.get("code") != CAPACITY_REACHED or time.monotonic() + wait > until:
                raise EnvironmentFailed(self._failure("reset", data))
            await self._hang_up()
            await asyncio.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT)

    async def step(self, action: dict[str, Any]) -> Step:
        """Take an action. Raise :class:`RefusedAction` for one that the environment's schema refuses."""
        kind, data = await self._ask("step", action)
        if kind == "observation":
            return self._step(data)
        if data.get("code") == INVALID_ACTION:
            raise RefusedAction(json.dumps(data.get("errors") or data.get("message"), default=str))
        raise EnvironmentFailed(self._failure("step", data))

    async def _ask(self, kind: str, data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        try:
            async with asyncio.timeout(self.message_seconds):
                if self._socket is None:
                    self._socket = await self._http.ws_connect(f"{self.url}/ws", max_msg_size=0)
                await self._socket.send_json({"type": kind, "data": data})
                answer = await self._socket.receive_json()
            return str(answer["type"]), dict(answer["data"])
        except TimeoutError:
            said = f"did not answer within {self.message_seconds:g} s"
        except aiohttp.ClientConnectorError as error:
            raise EnvironmentFailed(unreachable(self.url, error)) from error
        except (aiohttp.ClientError, ValueError, KeyError, TypeError) as error:
            said = f"gave no answer: {error!r}"
        raise EnvironmentFailed(f"{kind} at {self.url}: the server {said}")

    def _step(self, data: dict[str, Any]) -> Step:
        reward, observation = data.get("reward"), data.get("observation")
        if not isinstance(observation, dict) or not isinstance(reward, bool | int | float | None):
            raise EnvironmentFailed(f"{self.url} answered with {json.dumps(data)[:200]}: not an observation")
        return Step(observation, None if reward is None else float(reward), bool(data.get("done")))

    def _failure(self, kind: str, data: dict[str, Any]) -> str:
        hint = ""
        if data.get("code") == CAPACITY_REACHED:
            hint = (
                f"; no session became free in {self.capacity_seconds:g} s: raise the server's "
                "max_concurrent_envs, or lower agent.concurrency"
            )
        return f"{kind} at {self.url}: {data.get('message')} ({data.get('code')}){hint}"

    async def _hang_up(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()
