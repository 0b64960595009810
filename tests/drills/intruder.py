"""Asks for what it may not have while everything is killed around it, and counts what it got.

At the store: every refused cell of the authorisation matrix (``tests/contract/access.py``) in an order of its
own: keys of another attempt, expired, of another secret, of an ended attempt, and roles that are too low. At
the gateways: such keys for a model call. A request that met a dead process is asked again later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress

import aiohttp
from contract import access

from agentlightning.keys import Keys
from agentlightning.store import NotFound, Store
from agentlightning.types import RolloutConfig
from agl_cluster.roles import RoleTokens
from agl_cluster.store import traces

PAUSE = 0.02
CHUNK = 100
"""Requests between two looks at what the store holds."""
DOWN = (aiohttp.ClientError, ConnectionError, TimeoutError)
Refused = tuple[access.Target, access.Bearer, str]


def refused() -> list[Refused]:
    """Every cell that must be refused."""
    return [
        (target, bearer, whose)
        for target in access.targets()
        for bearer in (*access.BEARERS, access.ENDED)
        for whose in access.TARGETS
        if access.expected_status(target, bearer, whose) != 200
    ]


class Intruder:
    """``tried``: requests that were answered; ``got``: those that got or changed something."""

    def __init__(
        self, store: Store, url: str, tokens: RoleTokens, gateways: Sequence[str], seed: int
    ) -> None:
        self.store, self.url, self.tokens, self.gateways = store, url, tokens, gateways
        self.chance = random.Random(f"intruder/{seed}")
        self.tried = self.got = self.rounds = 0
        self.lines: list[str] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Ask until told to stop, round after round."""
        cells: list[Refused] = []
        while not stop.is_set():
            if not cells:
                cells = refused()
                self.chance.shuffle(cells)
                self.rounds += 1
            scene = await access.make_scene(
                self.store, Keys(access.SECRET), self.tokens, RolloutConfig(unresponsive_seconds=None)
            )
            before = await access.held(scene, sums=False)
            chunk, cells = cells[:CHUNK], cells[CHUNK:]
            cells += await self._chunk(scene, chunk, stop)
            await self._gateways(scene)
            if await self._held(scene) != before:
                self._note(f"something was changed by one of {len(chunk)} refused requests")

    @staticmethod
    async def _held(scene: access.Scene) -> object:
        """What the store holds of the scene; nothing if it was deleted."""
        try:
            return await access.held(scene, sums=False)
        except NotFound:
            return None

    async def _chunk(self, scene: access.Scene, chunk: list[Refused], stop: asyncio.Event) -> list[Refused]:
        """Ask; return the cells that nobody answered."""
        unanswered: list[Refused] = []
        async with aiohttp.ClientSession(self.url) as http:
            for cell in chunk:
                if stop.is_set():
                    break
                try:
                    await self._ask(http, scene, *cell)
                except DOWN:
                    unanswered.append(cell)
                await asyncio.sleep(PAUSE)
        return unanswered

    async def _ask(
        self,
        http: aiohttp.ClientSession,
        scene: access.Scene,
        target: access.Target,
        bearer: access.Bearer,
        whose: str,
    ) -> None:
        of = scene.own if whose == "own" else scene.foreign
        status, text = await access.ask(http, target, target.send(scene, of), bearer.make(scene))
        if status >= 500:  # a server that ends, or a batch that failed: nothing was given
            return
        self.tried += 1
        otlp = target.name == traces.PATH and '"rejectedSpans": "1"' in text  # refused span by span
        if (status == 200 and not otlp) or access.MARK in text:
            self._note(f"{target.name} · {bearer.name} · {whose}: {status}: {text[:150]}")

    async def _gateways(self, scene: access.Scene) -> None:
        """Ask each gateway for an answer with keys that are no longer, or never were, good."""
        keys = {
            "an expired attempt": scene.key(scene.own, ttl=-1.0),
            "another secret's attempt": Keys(access.OTHER).mint("ro", "at"),
            "an ended attempt": scene.key(scene.ended),
            "the operator's token": access.TOKEN,
            "nothing": None,
        }
        body = {"model": "policy", "messages": [{"role": "user", "content": access.MARK}]}
        async with aiohttp.ClientSession() as http:
            for gateway in self.gateways:
                for name, key in keys.items():
                    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
                    with suppress(*DOWN):
                        async with http.post(
                            f"{gateway}/chat/completions", json=body, headers=headers
                        ) as answer:
                            self.tried += answer.status < 500
                            if answer.status == 200:
                                self._note(f"{gateway} answered {name}")

    def _note(self, line: str) -> None:
        self.got += 1
        self.lines.append(line)
