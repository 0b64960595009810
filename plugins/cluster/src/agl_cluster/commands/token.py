"""``agl token``: make a token of a role for a store's server, or revoke one."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from agentlightning.terminal import print_json
from agentlightning.types import UsageError
from agl_cluster.roles import REVOKED_VARIABLE, Revoked, Role, RoleTokens, revoked_file

_UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def register(app: typer.Typer) -> None:
    @app.command("token")
    def token(
        role: Annotated[
            Role | None, typer.Option(help="What its bearer may do: runner, trainer or admin.")
        ] = None,
        expires: Annotated[
            str | None,
            typer.Option(help="How long it is valid, such as 7d, 12h, 30m; default: until it is revoked."),
        ] = None,
        revoke: Annotated[str | None, typer.Option(help="Refuse the token with this id from now on.")] = None,
        store: Annotated[
            str | None, typer.Option(help="With --revoke: the store's file or folder; default: AGL_STORAGE.")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Print a token of a role, made with AGL_SECRET, for AGL_TOKEN of a process without the secret.

        agl token --role runner --expires 7d

        Standard error says its id, with which --revoke ends it at once. A new AGL_SECRET ends all tokens.
        """
        if (role is None) == (revoke is None):
            raise UsageError("what is wanted? Give --role to make a token, or --revoke to end one")
        if revoke is not None:
            _revoke(revoke, store)
        elif role is not None:
            _issue(role, expires, as_json)


def _issue(role: Role, expires: str | None, as_json: bool) -> None:
    tokens = RoleTokens.from_env()
    if tokens is None:
        raise UsageError("a token is made with the store's secret: set AGL_SECRET to the same value here")
    made, claims = tokens.issue(role, None if expires is None else seconds(expires))
    if as_json:
        print_json({"token": made, "role": role, "id": claims.key_id, "expires": claims.expires})
        return
    until = (
        "" if claims.expires is None else f", until {time.strftime('%F %T', time.localtime(claims.expires))}"
    )
    print(f"role {role}, id {claims.key_id}{until}", file=sys.stderr)
    print(made)


def _revoke(key_id: str, store: str | None) -> None:
    if not re.fullmatch(r"[0-9a-z]{1,40}", key_id):
        raise UsageError(f"--revoke takes the id of a token, which `agl token` told, not {key_id[:12]!r}…")
    revoked = Revoked(_revoked_file(store))
    if key_id in revoked:
        print(f"{key_id} was revoked already", file=sys.stderr)
        return
    revoked.add(key_id)
    print(f"{key_id} is revoked: {revoked.path}", file=sys.stderr)


def _revoked_file(store: str | None) -> Path | None:
    from agentlightning.store.places import store_place
    from agentlightning.store.sqlite.store import store_file

    place = store or store_place()
    if place is not None and "://" in place and not place.startswith("sqlite:"):
        if not os.environ.get(REVOKED_VARIABLE):
            raise UsageError(
                f"{place} is no file: set {REVOKED_VARIABLE} to one path, for its server and for this command"
            )
        return revoked_file(None)
    file = store_file(place)
    return revoked_file(None if file == ":memory:" else file)


def seconds(text: str) -> float:
    """Return the seconds of ``7d``, ``12h``, ``30m``, ``45s`` or ``2w``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text.strip())
    if found is None or not float(found[1]):
        raise UsageError(f"--expires {text!r}: give a number and a unit (s, m, h, d, w), such as 7d")
    return float(found[1]) * _UNITS[found[2]]
