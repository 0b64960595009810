"""Migrations: one function for each version, in the SQL of its time.

Invariants: a migration names tables and columns by text and never by today's :mod:`.schema`, so that it does
the same for ever. All migrations of a file run in one transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from agentlightning.store import codec

Migration = Callable[[sqlite3.Connection], None]


def seals_resets_and_call_numbers(connection: sqlite3.Connection) -> None:
    """1 → 2: seals of steps, attempts that no longer count, and the numbers of calls as columns."""
    run = connection.execute
    run("ALTER TABLE rollouts ADD COLUMN forgiven INTEGER DEFAULT '0' NOT NULL")
    for column in ("prompt_tokens INTEGER", "completion_tokens INTEGER", "seconds FLOAT", "size INTEGER"):
        run(f"ALTER TABLE calls ADD COLUMN {column}")
    for (seq,) in run("SELECT seq FROM calls").fetchall():
        choice, blob = run("SELECT choice, data FROM calls WHERE seq = ?", (seq,)).fetchone()
        body = codec.unpack(blob, codec.CallBody)
        call = codec.call_from_body(body, call_id="", rollout_id="", attempt_id="", choice=choice)
        run(
            "UPDATE calls SET prompt_tokens = ?, completion_tokens = ?, seconds = ?, size = ? WHERE seq = ?",
            (*codec.numbers(call, blob), seq),
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
"""The default configuration of a rollout in version 3: one attempt, no limits (MessagePack)."""


def authority_pins_and_configurations(connection: sqlite3.Connection) -> None:
    """3 → 4: spans that the runner wrote, versions of resources, and the configuration of a run.

    Version 3 stored no default configuration, and the defaults have changed since: this stores the old ones.
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
    """4 → 5: calls may be deltas. Older calls stay whole. The new version number keeps older code from
    reading a delta as a whole call.
    """


def fingerprints_by_their_name(connection: sqlite3.Connection) -> None:
    """5 → 6: the fingerprints of steps, which were called seals."""
    run = connection.execute
    run("DROP INDEX seals_step")
    run("DROP INDEX seals_rollout")
    run("ALTER TABLE seals RENAME TO fingerprints")
    run("ALTER TABLE fingerprints RENAME COLUMN seal TO fingerprint")
    run("CREATE UNIQUE INDEX fingerprints_step ON fingerprints (run_id, step, policy, rollout_id)")
    run("CREATE INDEX fingerprints_rollout ON fingerprints (rollout_id)")


def rewards_given_afterwards(connection: sqlite3.Connection) -> None:
    """6 → 7: versions of a run's rewards, and what each has for a rollout."""
    run = connection.execute
    run(
        "CREATE TABLE reward_versions (seq INTEGER NOT NULL, run_id TEXT NOT NULL, name TEXT NOT NULL, "
        "version BLOB NOT NULL, PRIMARY KEY (seq))"
    )
    run("CREATE UNIQUE INDEX reward_versions_name ON reward_versions (run_id, name)")
    run(
        "CREATE TABLE rescored (rollout_id TEXT NOT NULL, version TEXT NOT NULL, failed INTEGER NOT NULL, "
        "data BLOB NOT NULL, PRIMARY KEY (rollout_id, version)) WITHOUT ROWID"
    )


MIGRATIONS: list[Migration] = [
    seals_resets_and_call_numbers,
    links_of_runs,
    authority_pins_and_configurations,
    calls_as_deltas,
    fingerprints_by_their_name,
    rewards_given_afterwards,
]
"""``MIGRATIONS[i]`` takes a file from version ``i + 1`` to ``i + 2``."""
