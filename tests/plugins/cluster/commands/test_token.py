"""``agl token``: tokens of roles, their expiry and their end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentlightning.cli import app
from agentlightning.types import UsageError
from agl_cluster.roles import Revoked, Role, RoleTokens

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_SECRET", SECRET)
    monkeypatch.delenv("AGL_REVOKED", raising=False)


def agl(*words: str) -> str:
    found = CliRunner().invoke(app(), ["token", *words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def test_it_prints_a_token_and_nothing_else() -> None:
    token = agl("--role", "runner", "--expires", "7d").strip()
    claims = RoleTokens(SECRET.encode()).check(token)
    assert claims.role is Role.RUNNER and claims.expires is not None
    assert abs(claims.expires - time.time() - 7 * 86_400) < 600


def test_a_revoked_token_is_refused(tmp_path: Path) -> None:
    made = json.loads(agl("--role", "trainer", "--json"))
    assert (made["role"], made["expires"]) == ("trainer", None)
    for _ in range(2):
        agl("--revoke", made["id"], "--store", str(tmp_path / "s.sqlite"))
    assert (tmp_path / "s.sqlite.revoked").read_text() == f"{made['id']}\n"
    assert made["id"] in Revoked(tmp_path / "s.sqlite.revoked")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Give --role to make a token, or --revoke"),
        (["--role", "runner", "--revoke", "ab"], "Give --role to make a token, or --revoke"),
        (["--role", "attempt"], "the runner makes the keys of attempts"),
        (["--role", "runner", "--expires", "soon"], "--expires 'soon': give a number and a unit"),
        (["--role", "runner", "--expires", "0d"], "--expires '0d'"),
        (["--revoke", "../x"], "--revoke takes the id of a token"),
        (["--revoke", "ab", "--store", "postgresql://x"], "set AGL_REVOKED to one path"),
    ],
)
def test_mistakes_are_told(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        agl(*words)


def test_without_the_secret_there_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGL_SECRET")
    with pytest.raises(UsageError, match="set AGL_SECRET"):
        agl("--role", "runner")
