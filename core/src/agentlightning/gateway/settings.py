"""The sections of a run's description that the gateway takes."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from pydantic import Field

from agentlightning.keys import ATTEMPT_BYTES
from agentlightning.types import UsageError
from agentlightning.types.sections import Section, SelectField
from agentlightning.webserver.loopback import address, cannot_listen, check_interface, interface


class CallSection(Section):
    """Which calls are trained, and which policy answers them."""

    select: SelectField = None
    """Agents whose calls are trained: a name, names, or ``re:pattern``; none: all agents."""
    policies: dict[str, str] = {}
    """Which agent talks to which policy: agent, role, node or ``re:…`` → name; the first entry that matches
    counts. If one policy is trained, all other agents talk to it."""


class GatewaySection(Section):
    """Where the gateway listens, and how much it takes. Plugins add what it does to calls of the policy."""

    listen: str | None = None
    """``host``, ``host:port`` or ``[host]:port``; none: a free port of 127.0.0.1."""
    advertise: str | None = None
    """URL that agents get instead, e.g. ``http://10.0.0.5``; without a port, the bound port is added."""
    max_requests: int = Field(default=16_384, ge=1)
    """Requests that a gateway has under way, at most; a further one is answered 503 ``busy``, and
    the SDK asks again a second later."""
    attempt_bytes: int = Field(default=ATTEMPT_BYTES, ge=1)
    """Bytes of requests that one attempt may send, all together; a further request is answered 413
    ``attempt-bytes`` and counted. Several gateways count each for itself."""


WILDCARDS = ("0.0.0.0", "::")


def agent_url(host: str, port: int, advertise: str | None = None) -> str:
    """The base URL for agents of a gateway that listens on ``host`` and ``port``; ``advertise``: the URL to
    give them instead, to which the port is added unless it has one or is https.
    """
    if advertise is None:
        return f"http://{address(host)}:{port}/v1"
    advertised = urlsplit(advertise)
    known = advertised.port is not None or advertised.scheme == "https"
    return f"{advertised.scheme}://{advertised.netloc}{'' if known else f':{port}'}/v1"


def parse_listen(
    listen: str | None = None, advertise: str | None = None, *, guarded: bool | None = None
) -> tuple[str, int]:
    """Host and port (0: a free one) of ``listen``: ``host``, ``port``, ``host:port`` or ``[host]:port``.
    ``guarded``: whether the keys of attempts are made with a chosen secret; ``None``: whether ``AGL_SECRET``
    is set.

    Raise :class:`UsageError`, before anything is bound, when ``listen`` is not of these forms or is not safe,
    or when ``advertise`` is not ``http(s)://host[:port]``.
    """
    text = listen or "127.0.0.1"
    text = f"127.0.0.1:{text}" if text.isdecimal() else text
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = text, "0"  # no port, perhaps a bare IPv6 address
    host = interface(host.removeprefix("[").removesuffix("]"))
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"gateway.listen: {text!r} is no host, port, host:port or [host]:port")
    if advertise is not None:
        _check_advertise(advertise)
    guarded = bool(os.environ.get("AGL_SECRET")) if guarded is None else guarded
    check_interface("the gateway", host, guarded=guarded, variable="AGL_SECRET")
    if host in WILDCARDS and advertise is None:
        raise UsageError(
            f"gateway.listen: {host} is every interface, and no address for agents: name one with "
            "gateway.advertise, e.g. http://10.0.0.5"
        )
    return host, int(port)


def cannot_serve(host: str, port: int, error: OSError) -> UsageError:
    """Return the error of a gateway that has no port."""
    return cannot_listen("the gateway", host, port, error, "gateway.listen, or by --listen")


def _check_advertise(advertise: str) -> None:
    try:
        url = urlsplit(advertise)
        good = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        good = False
    if not good or url.path not in ("", "/") or url.query or url.fragment or url.username:
        raise UsageError(f"gateway.advertise: {advertise!r} must be http(s)://host or http(s)://host:port")
