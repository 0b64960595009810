"""Runs programs as ``agl run`` does, without its command line, and reads their records."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agl_programs.attempts import ProgramAttempt, run_all
from agl_programs.options import ProgramOptions
from agl_programs.session import open_session
from agl_programs.summary import Summary, summarise
from agl_testing import ScriptedModelServer

from agentlightning.credit.verdicts import verdicts
from agentlightning.plugins import Plugins
from agentlightning.types import Attempt, Record, Span

CALL = """
from openai import OpenAI

def ask(text="hi", client=OpenAI(max_retries=0)):
    told = client.chat.completions.create(model="any", messages=[{"role": "user", "content": text}])
    return told.choices[0].message.content
"""
"""The beginning of a program that calls a model."""


@dataclass
class Outcome:
    """What one ``agl run`` recorded."""

    summary: Summary
    ran: list[ProgramAttempt]
    records: list[Record]
    attempts: list[Attempt]
    spans: list[Span]

    @property
    def kinds(self) -> list[str]:
        return [verdict.kind for record in self.records for verdict in verdicts(record).values()]

    @property
    def asked(self) -> list[Any]:
        """What the calls asked, in order."""
        calls = [call for record in self.records for call in record.calls]
        return [call.request["messages"][-1]["content"] for call in calls if call.request]


def written(folder: Path, source: str, name: str = "app.py") -> Path:
    """A program's file."""
    file = folder / name
    file.write_text(textwrap.dedent(source))
    return file


async def run(
    folder: Path,
    source: str,
    server: ScriptedModelServer,
    *args: str,
    flags: Sequence[str] = (),
    **options: Any,
) -> Outcome:
    """Run a Python program to its end."""
    command = [sys.executable, *flags, str(written(folder, source)), *args]
    return await run_command(folder, command, server, **options)


async def run_command(
    folder: Path,
    command: Sequence[str],
    server: ScriptedModelServer,
    plugins: Plugins | None = None,
    **fields: Any,
) -> Outcome:
    given = {"upstream": server.url, "model": server.model, "output": folder / "runs", **fields}
    options = ProgramOptions(command=command, **given).check()
    async with open_session(options, plugins) as session:
        await session.store.add_run(session.run_id, {})
        ran = await run_all(session)
        summary = await summarise(session, ran, 0.0)
        records = await session.store.records(summary.rollouts)
        attempts, spans = [], []
        for rollout_id in summary.rollouts:
            attempts += await session.store.query_attempts(rollout_id)
            spans += await session.store.query_spans(rollout_id)
    return Outcome(summary, ran, records, attempts, spans)
