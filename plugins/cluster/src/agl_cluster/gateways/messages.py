"""What a run and its gateway processes say to each other, over a socket that only these two have.

The run tells each process the *whole* state that calls depend on (:class:`GatewayState`): what it told last
counts, and a process that begins late is told the same as the others. Invariant: messages arrive in the order
in which they were sent.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Generic, TypeVar

import msgspec

from agentlightning.gateway.attempts import AttemptInfo
from agentlightning.gateway.route import Upstream
from agentlightning.gateway.sampling import SamplingPolicy
from agentlightning.types import Call
from agentlightning.types.arrays import from_either, to_bytes
from agentlightning.types.base import LogprobsMode

_LENGTH = struct.Struct("!I")


class RouteState(msgspec.Struct, kw_only=True, frozen=True):
    """An :class:`Upstream` by value."""

    policy: str
    url: str
    model: str
    replicas: list[str]
    api_key: str | None
    trainable: bool
    seeded: bool
    stream_ids: bool | None
    settings: dict[str, Any] | None
    vocabulary: int | None
    context: int | None
    logprobs_mode: LogprobsMode | None
    versioned: bool
    """Whether the run knows the served version."""
    version: int | None
    """The version that is served now."""

    @classmethod
    def of(cls, route: Upstream) -> RouteState:
        """Describe a route as it is now."""
        names = set(cls.__struct_fields__) - {"replicas", "settings", "versioned", "version"}
        return cls(
            replicas=list(route.replicas),
            settings=None if route.settings is None else route.settings.model_dump(),
            versioned=route.version is not None,
            version=route.served_version(),
            **{name: getattr(route, name) for name in names},
        )


class GatewayState(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """All that calls depend on."""

    number: int
    """Grows with every message; the process acknowledges it."""
    routes: list[RouteState]
    sampling: dict[str, SamplingPolicy]
    held: list[str]
    """Policies whose calls wait; ``pause.ALL``: those of all policies."""


class Begin(msgspec.Struct, kw_only=True, frozen=True, tag=True):
    """The first message: what a process serves. ``setup``: pickled :class:`~.main.Setup`."""

    setup: bytes
    state: GatewayState
    attempts: list[AttemptInfo]


class Expect(msgspec.Struct, frozen=True, tag=True):
    """An attempt was opened."""

    info: AttemptInfo


class Close(msgspec.Struct, frozen=True, tag=True):
    """Close an attempt; answered by :class:`Done`."""

    number: int
    attempt_id: str
    grace: float


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Wait until no call is at an engine; answered by :class:`Done`."""

    number: int
    timeout: float | None


class End(msgspec.Struct, frozen=True, tag=True):
    """Stop serving, and end."""


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """The process serves by state ``number``; ``counts``: its counters, as ``Metrics.as_dict``."""

    number: int
    counts: dict[str, Any]


class Done(msgspec.Struct, frozen=True, tag=True):
    """A request of the run is done."""

    number: int
    result: bool = True


class Recorded(msgspec.Struct, frozen=True, tag=True):
    """A call is on record; sent if the run watches them."""

    call: Call


ToProcess = Begin | GatewayState | Expect | Close | Drain | End
FromProcess = Acknowledged | Done | Recorded
T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder(enc_hook=to_bytes)


class Channel(Generic[T]):
    """One end of the socket. ``receives``: the type of what arrives."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, receives: Any) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = msgspec.msgpack.Decoder(receives, dec_hook=from_either)

    def send(self, message: ToProcess | FromProcess) -> None:
        """Send a message, unless the other end is gone."""
        if not self._writer.is_closing():
            data = _encoder.encode(message)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    async def receive(self) -> T | None:
        """Return the next message; ``None`` once the other end is gone."""
        try:
            (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            found: T = self._decoder.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return found

    async def flush(self) -> None:
        """Wait until what was sent has left."""
        try:
            await self._writer.drain()
        except OSError:
            pass

    def close(self) -> None:
        """Close this end."""
        self._writer.close()
