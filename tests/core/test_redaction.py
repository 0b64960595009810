"""What is shown of secrets in URLs and of control characters in text."""

from __future__ import annotations

import json

import pytest

from agentlightning.redaction import redacted, visible


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
        ("http://me:secret@host:1/v1", "http://me:***@host:1/v1"),
        ("http://secret@host/v1", "http://***@host/v1"),
        ("http://me:se/cret@host/v1", "http://me:***@host/v1"),
        ("http://127.0.0.1:4873/@scope/a@b", "http://127.0.0.1:4873/@scope/a@b"),
        (
            "http://host/v1?token=secret&n=1&api_key=secret#key=secret",
            "http://host/v1?token=***&n=1&api_key=***#key=***",
        ),
        (
            "https://b/x?X-Amz-Signature=secret&pass%77ord=secret",
            "https://b/x?X-Amz-Signature=***&pass%77ord=***",
        ),
        (
            "no answer of postgresql://a:secret@h/d, http://b:secret@i/ (x@y)",
            "no answer of postgresql://a:***@h/d, http://b:***@i/ (x@y)",
        ),
        ('{"a":"http://u:secret@h","b":"c@d"}', '{"a":"http://u:***@h","b":"c@d"}'),
    ],
)
def test_a_password_is_not_shown(place: object, shown: str) -> None:
    assert redacted(place) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 漢字 👩‍💻\n\tnext", "plain äöü 漢字 👩‍💻\n\tnext"),
        ("\x1b]0;title\x07", "\\u001b]0;title\\u0007"),
        ("\x9b2J\x1b[2J\r\x7f\0", "\\u009b2J\\u001b[2J\\u000d\\u007f\\u0000"),
        ("a\u202eb\u2066c\u2028d\u200be", "a\\u202eb\\u2066c\\u2028d\\u200be"),
        ("\ud800", "\\ud800"),
    ],
)
def test_a_terminal_shows_controls_and_does_not_obey_them(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_json_stays_the_same() -> None:
    value = {"a": "\x1b[2J\x9b\u202e", "b": ["\ud800"]}
    line = json.dumps(value, ensure_ascii=False)
    assert json.loads(visible(line)) == value and visible(line).isascii()
