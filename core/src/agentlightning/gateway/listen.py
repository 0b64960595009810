"""The address that the gateway listens on, and the URL that agents are given.

By default both are loopback: agents run on this machine. Runners on other machines need an interface that
they can reach. Invariant: an interface that other machines can reach is bound only if the keys of attempts
are made with a chosen secret (``AGL_SECRET``), which those runners need anyway.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from agentlightning.types import UsageError
from agentlightning.webserver.loopback import address, cannot_listen, check_interface, interface

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
