"""Tokens of roles: what they say, when they end, and what they do not open."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from agentlightning.keys import Keys, WeakSecret
from agentlightning.types import UsageError
from agentlightning.types.base import RequestRefused
from agl_cluster.roles import DERIVED, PREFIX, Revoked, Role, RoleTokens, derived_token

SECRET = b"0123456789abcdef0123456789abcdef"


def reason(tokens: RoleTokens, token: str) -> str:
    with pytest.raises(RequestRefused) as refused:
        tokens.check(token)
    assert refused.value.status == 401 and (not token or token not in refused.value.message)
    return refused.value.reason


def test_roles_are_ordered() -> None:
    assert Role.ADMIN.covers(Role.ATTEMPT) and Role.RUNNER.covers(Role.RUNNER)
    assert not Role.RUNNER.covers(Role.TRAINER) and not Role.ATTEMPT.covers(Role.RUNNER)


def test_a_token_says_its_role_and_another_secret_says_nothing() -> None:
    tokens = RoleTokens(SECRET)
    for role in (Role.RUNNER, Role.TRAINER, Role.ADMIN):
        token, claims = tokens.issue(role, 60.0)
        assert tokens.check(token) == claims and claims.role is role and claims.expires is not None
    assert reason(RoleTokens(b"another secret of 32 bytes......"), token) == "unknown-token"
    derived = tokens.derive(Role.RUNNER)
    assert derived == RoleTokens(SECRET).derive(Role.RUNNER)
    assert tokens.check(derived).key_id == DERIVED


def test_a_token_that_was_changed_is_refused() -> None:
    tokens = RoleTokens(SECRET)
    token = tokens.derive(Role.RUNNER)
    raw = bytearray(base64.urlsafe_b64decode(token.removeprefix(PREFIX) + "=="))
    raw[-len(DERIVED) - 10] ^= 1
    changed = PREFIX + base64.urlsafe_b64encode(bytes(raw)).decode().rstrip("=")
    for wrong in (changed, token[:-2], PREFIX, PREFIX + "ü", "", "agl-x"):
        assert reason(tokens, wrong) == "unknown-token"


def test_a_key_of_an_attempt_is_no_token_and_a_token_no_key() -> None:
    tokens, keys = RoleTokens(SECRET), Keys(SECRET)
    key, token = keys.mint("ro", "at"), tokens.derive(Role.ADMIN)
    assert reason(tokens, key) == "unknown-token"
    assert reason(tokens, PREFIX + key.removeprefix("agl-")) == "unknown-token"
    for wrong in (token, "agl-" + token.removeprefix(PREFIX)):
        with pytest.raises(RequestRefused):
            keys.check(wrong)


def test_a_token_expires_and_is_revoked_by_its_id(tmp_path: Path) -> None:
    revoked = Revoked(tmp_path / "new" / "store.sqlite.revoked")
    tokens = RoleTokens(SECRET, revoked)
    late, _ = tokens.issue(Role.TRAINER, -1.0)
    assert reason(tokens, late) == "expired-token"
    (first, claims), (second, _) = tokens.issue(Role.RUNNER), tokens.issue(Role.RUNNER)
    assert tokens.check(first) == claims
    Revoked(revoked.path).add(claims.key_id)  # another process
    assert reason(tokens, first) == "revoked-token" and tokens.check(second).role is Role.RUNNER


def test_the_file_of_revoked_ids_may_have_comments(tmp_path: Path) -> None:
    file = tmp_path / "revoked"
    file.write_text("# old laptops\n\nabc  left the team\n")
    found = Revoked(file)
    assert "abc" in found and "#" not in found and "old" not in found and "abc" not in Revoked()
    file.write_text("")
    os.utime(file, ns=(1, 1))
    assert "abc" not in found
    with pytest.raises(UsageError, match="AGL_REVOKED"):
        Revoked().add("abc")


def test_attempts_have_keys_and_secrets_have_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="the runner makes the keys"):
        RoleTokens(SECRET).issue(Role.ATTEMPT)
    with pytest.raises(WeakSecret, match="5 bytes"):
        RoleTokens(b"short")
    monkeypatch.delenv("AGL_SECRET", raising=False)
    assert derived_token(Role.ADMIN) is None
    monkeypatch.setenv("AGL_SECRET", SECRET.decode())
    assert derived_token(Role.RUNNER) == RoleTokens(SECRET).derive(Role.RUNNER)
