"""Keeps the calls to our own servers away from the proxies that the environment names.

HTTP clients read ``HTTP_PROXY`` and ``NO_PROXY`` when they are made. Our servers are on this machine or at an
address that agents reach directly; a proxy would refuse their calls, or see them. Other hosts go on through
the proxy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOG = logging.getLogger(__name__)


def direct_variables(base: Mapping[str, str], *urls: str | None) -> dict[str, str]:
    """Return ``NO_PROXY`` and ``no_proxy`` of ``base`` with loopback and the hosts of ``urls`` added to them.
    Without a proxy in ``base`` there is nothing to set: a variable alone would hide a system's own settings.

    An IPv6 address is written without brackets, which httpx, requests, aiohttp and curl read; Python's urllib
    looks for brackets, with which httpx refuses to start.
    """
    if not any(base.get(name) for name in PROXIES):
        return {}
    hosts = [*LOOPBACK, *(host for url in urls if url and (host := urlsplit(url).hostname))]
    found = {}
    for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
        given = (word.strip() for word in (base.get(name) or base.get(other) or "").split(","))
        found[name] = ",".join(dict.fromkeys([*filter(None, given), *hosts]))
    return found


def go_direct(*urls: str | None) -> None:
    """Have clients that this process makes from now on reach loopback and the hosts of ``urls`` directly."""
    os.environ.update(direct_variables(os.environ, *urls))


def vendor_proxy(url: str) -> str | None:
    """Return the proxy for requests to a vendor's endpoint, ``None`` for none. An engine of one's own is
    reached over plain http, a vendor over https: ``HTTPS_PROXY``, else ``ALL_PROXY``, less ``NO_PROXY``.
    """
    # here, as every start of agl would load a client for it
    from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

    place, named = urlsplit(url), getproxies_environment()
    proxy = named.get("https") or named.get("all")
    own = place.scheme != "https" or place.hostname in LOOPBACK
    if own or not proxy or proxy_bypass_environment(place.netloc, named):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if (kind := urlsplit(proxy).scheme) not in ("http", "https"):
        _LOG.warning("the gateway asks %s directly: it knows no %s proxy", place.hostname, kind)
        return None
    return proxy
