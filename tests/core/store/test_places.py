"""A store's place without its password."""

from __future__ import annotations

import pytest

from agentlightning.store.places import without_password


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("runs/a/store.sqlite", "runs/a/store.sqlite"),
        ("sqlite:///a@b/c.sqlite", "sqlite:///a@b/c.sqlite"),
        ("http://host:4747", "http://host:4747"),
        ("postgresql://agl@db/agl", "postgresql://agl@db/agl"),
        (
            "postgresql://agl:secret@db:5432/agl?sslmode=require",
            "postgresql://agl:***@db:5432/agl?sslmode=require",
        ),
        ("postgresql://agl:se@cr/et@db/agl", "postgresql://agl:***@db/agl"),
        ("postgresql://db/agl?password=secret&user=agl", "postgresql://db/agl?password=***&user=agl"),
        ("postgresql://agl:[secret@db/agl?x=1", "postgresql://agl:***@db/agl?x=1"),
        (None, "None"),
    ],
)
def test_a_password_is_not_shown(place: object, shown: str) -> None:
    assert without_password(place) == shown
