"""Keys: what opens, what does not, and why."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentlightning.keys import PREFIX, Keys
from agentlightning.types.base import RequestRefused

SECRET = b"0123456789abcdef"


def refused(keys: Keys, key: str, now: float | None = None) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        keys.check(key, now)
    return caught.value


def test_round_trip_across_holders_of_one_secret() -> None:
    key = Keys(SECRET).mint("ro-1", "at-1", run_id="run", fence=3)
    claims = Keys(SECRET).check(key)
    assert (claims.run_id, claims.rollout_id, claims.attempt_id, claims.fence) == ("run", "ro-1", "at-1", 3)


def test_another_secret_does_not_open() -> None:
    error = refused(Keys(), Keys(SECRET).mint("ro-1", "at-1"))
    assert (error.status, error.reason, error.claims) == (401, "unknown-key", None)


@given(position=st.integers(min_value=0), bit=st.integers(min_value=0, max_value=63))
def test_no_changed_character_opens(position: int, bit: int) -> None:
    keys = Keys(SECRET)
    key = keys.mint("ro-1", "at-1")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    at = len(PREFIX) + position % (len(key) - len(PREFIX) - 1)  # the last one may hold padding bits
    if alphabet[bit] != key[at]:
        assert refused(keys, key[:at] + alphabet[bit] + key[at + 1 :]).status == 401


@given(st.text(max_size=80))
def test_garbage_is_refused(text: str) -> None:
    assert refused(Keys(SECRET), text).reason == "unknown-key"
    assert refused(Keys(SECRET), PREFIX + text).reason == "unknown-key"


def test_expiry_and_revocation_name_the_attempt() -> None:
    keys = Keys(SECRET)
    key = keys.mint("ro-1", "at-1", ttl=10)
    keys.check(key)
    late = refused(keys, key, now=4e9)
    assert (late.status, late.reason) == (401, "expired-key") and late.claims is not None
    keys.revoke("at-1")
    ended = refused(keys, key)
    assert (ended.status, ended.reason) == (409, "attempt-ended")
    assert ended.claims is not None and ended.claims.attempt_id == "at-1"
    keys.check(keys.mint("ro-1", "at-2"))  # its sibling still works


def test_revocations_are_forgotten_when_the_keys_have_expired() -> None:
    keys = Keys(SECRET)
    keys.revoke("at-1", ttl=-1)
    keys.revoke("at-2")
    assert list(keys._revoked) == ["at-2"]


def test_short_secrets_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="5 bytes; give at least 16"):
        Keys(b"short")
    monkeypatch.setenv("AGL_SECRET", "x" * 20)
    key = Keys.from_env().mint("ro-1", "at-1")
    assert Keys.from_env().check(key).rollout_id == "ro-1"


def test_an_empty_secret_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGL_SECRET", "")
    with pytest.raises(ValueError, match="AGL_SECRET: the key secret has 0 bytes"):
        Keys.from_env()


def test_only_the_latest_claims_are_kept(monkeypatch):
    monkeypatch.setattr("agentlightning.keys.MAX_KNOWN", 2)
    keys = Keys(b"0123456789abcdef")
    minted = [keys.mint("ro", f"at-{n}") for n in range(4)]
    for _ in range(2):
        assert [keys.check(key).attempt_id for key in minted] == [f"at-{n}" for n in range(4)]
    assert keys._claims.cache_info().currsize == 2
    keys.revoke("at-3")
    with pytest.raises(RequestRefused, match="has ended"):
        keys.check(minted[3])
