"""What a running gateway counts now: its ``GET /metrics``, as JSON.

Only gateways of this machine are asked, and only those of runs that train: an address in a record of long ago
may belong to anybody by now.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp

SECONDS = 1.0
"""How long a page waits for a gateway."""
_LARGEST = 1 << 20
"""Bytes of an answer that are read."""
GATE = ("attempts", "in_flight", "waiting", "waited")
FAMILIES = ("calls", "refused", "masked", "streams", "over_length", "failovers", "aborted", "unrouted")


class Engine(NamedTuple):
    """An endpoint of a policy, as the gateway sees it."""

    policy: str
    endpoint: int
    """Its number among the policy's endpoints."""
    up: bool
    in_flight: int
    answered: int
    lost: int


class LiveGateway(NamedTuple):
    """A gateway's state, or why there is none."""

    url: str
    problem: str = ""
    paused: bool = False
    gate: Mapping[str, int] = {}
    counts: Mapping[str, Mapping[str, int]] = {}
    engines: tuple[Engine, ...] = ()


def is_here(url: str) -> bool:
    """Return whether an address is one of this machine's loopback."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def ask(url: str) -> LiveGateway:
    """Ask the gateway whose API is at ``url`` for its state."""
    if not is_here(url):
        return LiveGateway(url, "it is on another machine; its /metrics says more")
    address = url.removesuffix("/v1") + "/metrics"
    try:
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(address, headers={"Accept": "application/json"}) as response,
        ):
            response.raise_for_status()
            state = json.loads(await response.content.read(_LARGEST))
        return _read(url, state)
    except (aiohttp.ClientError, TimeoutError) as error:
        return LiveGateway(url, f"it does not answer: {type(error).__name__}")
    except (ValueError, TypeError, KeyError, AttributeError):
        return LiveGateway(url, "what answers there is no gateway")


def _read(url: str, state: Mapping[str, Any]) -> LiveGateway:
    engines = [
        Engine(str(policy), number, bool(e["up"]), int(e["in_flight"]), int(e["answered"]), int(e["lost"]))
        for policy, endpoints in state["engines"].items()
        for number, e in enumerate(endpoints)
    ]
    counts = {name: {str(k): int(v) for k, v in state[name].items()} for name in FAMILIES if state.get(name)}
    gate = {name: int(state[name]) for name in GATE}
    return LiveGateway(url, "", bool(state["paused"]), gate, counts, tuple(engines))
