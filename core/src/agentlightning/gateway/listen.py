"""The address that the gateway listens on, and the URL that agents are given.

By default both are loopback: agents run on this machine. Runners on other machines need an interface that
they can reach. Invariant: an interface that others can reach is bound only where attempts' keys are made with
a secret that was chosen (``AGL_SECRET``), which those runners need anyway.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from agentlightning.types import UsageError
from agentlightning.webserver.loopback import check_interface, is_loopback

WILDCARDS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """``host`` and ``port`` (0: a free one) to bind; ``advertise``: the URL that agents are given instead of
    these, without a path.
    """

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None

    @property
    def remote(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self.host)

    def url(self, port: int) -> str:
        """The base URL for agents, once ``port`` is bound."""
        if self.advertise is None:
            return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{port}/v1"
        advertised = urlsplit(self.advertise)
        known = advertised.port is not None or advertised.scheme == "https"
        return f"{advertised.scheme}://{advertised.netloc}{'' if known else f':{port}'}/v1"


def parse_listen(listen: str | None = None, advertise: str | None = None) -> ListenAddress:
    """``listen``: ``host``, ``host:port`` or ``[host]:port``; ``advertise``: ``http(s)://host[:port]``.
    :class:`UsageError` names the error, before anything is bound.
    """
    host, port = _place(listen or "127.0.0.1")
    if advertise is not None:
        _check_url(advertise)
    check_interface("the gateway", host, guarded=bool(os.environ.get("AGL_SECRET")), variable="AGL_SECRET")
    if host in WILDCARDS and advertise is None:
        raise UsageError(
            f"gateway.listen: {host} is every interface, and no address for agents: name one with "
            "gateway.advertise, e.g. http://10.0.0.5"
        )
    return ListenAddress(host, port, advertise)


def _place(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = text, "0"  # no port, perhaps a bare IPv6 address
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"gateway.listen: {text!r} is no host, host:port or [host]:port")
    return host, int(port)


def _check_url(advertise: str) -> None:
    try:
        advertised = urlsplit(advertise)
        good = advertised.scheme in ("http", "https") and bool(advertised.hostname) and advertised.port != 0
    except ValueError:
        good = False
    if (
        not good
        or advertised.path not in ("", "/")
        or advertised.query
        or advertised.fragment
        or advertised.username
    ):
        raise UsageError(f"gateway.advertise: {advertise!r} must be http(s)://host or http(s)://host:port")
