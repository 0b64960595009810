"""Whether an address can be reached from this machine only: servers refuse others unless they are told to."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """``localhost`` or an address of the loopback range; a name that would have to be looked up is not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
