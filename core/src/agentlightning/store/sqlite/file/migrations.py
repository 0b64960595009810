"""Migrations: one function for each version, in the SQL of its time.

Invariant: a migration names tables and columns by text and never by today's :mod:`.schema`, so that it does
the same for ever. It runs inside one transaction, whole or not at all.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

from agentlightning.store import codec

Migration = Callable[[sqlite3.Connection], None]
_ROWS = 500
"""Calls held in memory while their numbers are copied."""


def seals_resets_and_call_numbers(connection: sqlite3.Connection) -> None:
    """1 → 2: seals of steps, attempts that no longer count, and the numbers of calls as columns."""
    run = connection.execute
    run("ALTER TABLE rollouts ADD COLUMN forgiven INTEGER DEFAULT '0' NOT NULL")
    for column, kind in (
        ("prompt_tokens", "INTEGER"),
        ("completion_tokens", "INTEGER"),
        ("seconds", "FLOAT"),
        ("size", "INTEGER"),
    ):
        run(f"ALTER TABLE calls ADD COLUMN {column} {kind}")
    for rows in _pages(connection):
        connection.executemany(
            "UPDATE calls SET prompt_tokens = ?, completion_tokens = ?, seconds = ?, size = ? WHERE seq = ?",
            [(*numbers_of(blob, choice), seq) for seq, choice, blob in rows],
        )
    run("DROP INDEX calls_attempt")
    run(
        "CREATE INDEX calls_attempt ON calls (rollout_id, attempt_id, sequence, prompt_tokens, "
        "completion_tokens, seconds, size)"
    )
    run(
        "CREATE TABLE seals (seq INTEGER NOT NULL, run_id TEXT NOT NULL, step INTEGER NOT NULL, "
        "policy TEXT NOT NULL, rollout_id TEXT NOT NULL, seal BLOB NOT NULL, PRIMARY KEY (seq))"
    )
    run("CREATE UNIQUE INDEX seals_step ON seals (run_id, step, policy, rollout_id)")
    run("CREATE INDEX seals_rollout ON seals (rollout_id)")


def numbers_of(blob: bytes, choice: int) -> tuple[int | None, int | None, float, int]:
    """What :func:`.trace.writing.numbers` says of a call, from its blob."""
    body = codec.unpack(blob, codec.CallBody)
    call = codec.call_from_body(body, call_id="", rollout_id="", attempt_id="", choice=choice)
    return codec.numbers(call, blob)


def _pages(connection: sqlite3.Connection) -> Iterator[list[tuple[int, int, bytes]]]:
    last = -1
    while rows := connection.execute(
        "SELECT seq, choice, data FROM calls WHERE seq > ? ORDER BY seq LIMIT ?", (last, _ROWS)
    ).fetchall():
        yield rows
        last = rows[-1][0]


def links_of_runs(connection: sqlite3.Connection) -> None:
    """2 → 3: the chain of a run, link by link."""
    connection.execute(
        "CREATE TABLE links (run_id TEXT NOT NULL, number INTEGER NOT NULL, link BLOB NOT NULL, "
        "PRIMARY KEY (run_id, number))"
    )


_UNTRIED_AGAIN = (
    b"\x00\x85\xaftimeout_seconds\xc0\xb4unresponsive_seconds\xc0\xacmax_attempts\x01"
    b"\xafretry_condition\x90\xa8retry_on\x90"
)
"""What a rollout without a configuration meant in version 3: one attempt, no limits (MessagePack)."""


def authority_pins_and_configurations(connection: sqlite3.Connection) -> None:
    """3 → 4: spans that the runner wrote, versions of resources, and the configuration of a run.

    Version 3 left the usual configuration out, and what is usual has changed since: so it is written down.
    """
    run = connection.execute
    run("ALTER TABLE spans ADD COLUMN returned INTEGER DEFAULT '0' NOT NULL")
    run("CREATE INDEX spans_returned ON spans (rollout_id, attempt_id) WHERE returned = 1")
    run("ALTER TABLE rollouts ADD COLUMN resources_version INTEGER")
    run("ALTER TABLE attempts ADD COLUMN resources_id TEXT")
    run("ALTER TABLE attempts ADD COLUMN resources_version INTEGER")
    run("ALTER TABLE runs ADD COLUMN config BLOB")
    run("UPDATE rollouts SET config = ? WHERE config IS NULL", (_UNTRIED_AGAIN,))


def calls_as_deltas(_: sqlite3.Connection) -> None:
    """4 → 5: calls may be deltas. Older ones are whole and stay so; the version keeps older code from taking
    a delta for the whole.
    """


MIGRATIONS: list[Migration] = [
    seals_resets_and_call_numbers,
    links_of_runs,
    authority_pins_and_configurations,
    calls_as_deltas,
]
"""``MIGRATIONS[i]`` takes a file from version ``i + 1`` to ``i + 2``."""
