"""Signals of a store in many processes: rollouts that were queued or have ended, by LISTEN and NOTIFY.

A signal is sent after the commit of what it tells, else a waiter would look too early. Within the process it
needs no server; other processes get it from the server, which delivers it with the commit. A signal may be
lost with a connection: waiters look by themselves now and then, and after every reconnection.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence

from agentlightning.store.sql.waiting import Waiters
from agl_postgres.database import PostgresDatabase, Transaction

_MOST_BYTES = 7000
"""Bytes of one notification; PostgreSQL takes 8000."""
_ALL = "*"
"""In place of ids: look again, whatever you wait for."""


class PostgresWaiters(Waiters):
    """The waiters of this process, woken by its own commits and by those of others."""

    def __init__(self, db: PostgresDatabase) -> None:
        super().__init__()
        self._db = db
        self.channel = f"agl_{db.schema}"[:63]
        self._own = secrets.token_hex(8)

    def notify_queued(self, run_id: str | None) -> None:
        """Signal that a rollout of a run was queued: after the commit, within a transaction."""
        if (within := self._db.transaction) is not None:
            within.queued.append(run_id)
        else:
            super().notify_queued(run_id)

    def notify_ended(self, rollout_id: str) -> None:
        """Signal that a rollout has ended: after the commit, within a transaction."""
        if (within := self._db.transaction) is not None:
            within.ended.append(rollout_id)
        else:
            super().notify_ended(rollout_id)

    def committing(self, transaction: Transaction) -> None:
        """Send the signals of a transaction to other processes, with its commit."""
        if transaction.queued or transaction.ended:
            payload = json.dumps([self._own, transaction.queued, transaction.ended])
            if len(payload) > _MOST_BYTES:
                payload = json.dumps([self._own, _ALL, _ALL])
            transaction.connection.execute("SELECT pg_notify(%s, %s)", (self.channel, payload))

    def committed(self, transaction: Transaction) -> None:
        """Signal what a transaction has done, within this process."""
        self._deliver(transaction.queued, transaction.ended)

    def received(self, payload: str) -> None:
        """Pass on a notification of another process."""
        sender, queued, ended = json.loads(payload)
        if sender == self._own:
            return
        if _ALL in (queued, ended):
            self.look_again()
        else:
            self._deliver(queued, ended)

    def _deliver(self, queued: Sequence[str | None], ended: Sequence[str]) -> None:
        for run_id in queued:
            super().notify_queued(run_id)
        for rollout_id in ended:
            super().notify_ended(rollout_id)
