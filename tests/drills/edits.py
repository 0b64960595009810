"""The edits of the tamper drill: each changes one thing of a finished run, and says what verify must name."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from agentlightning import semconv
from agentlightning.credit.digest import compute_head, sign
from agentlightning.store.calls import whole_calls
from agentlightning.store.codec import CallBody, call_body, pack, pack_span, unpack, unpack_span
from agentlightning.store.sql.trace import CALL_COLUMNS, stored_calls
from agentlightning.types import AuditLink, Call, RolloutFingerprint, StepReport
from agl_audit.verification.differences import Difference

KEY = "the key of the tamper drill"


class NotHere(Exception):
    """The run has nothing of the kind that the edit is of."""


@dataclass(frozen=True)
class Expected:
    """What verify must say: a difference of one of ``kinds``, about exactly this."""

    kinds: tuple[str, ...]
    rollout: str | None = None
    call: str | None = None
    step: int | None = None
    of: str = ""
    """A part of what it is of."""
    text: str = ""
    """A part of the sentence."""
    also: tuple[str, ...] = ()
    """Kinds of further differences that are the same edit, seen elsewhere."""
    keyed: bool = False
    """Whether the run was signed, and is verified with the key."""
    head: str | None = None
    """The head that was kept elsewhere."""


Edit = Callable[[Path, Random], Expected]
EDITS: dict[str, Edit] = {}


def says(found: Difference, expected: Expected) -> bool:
    """Whether this difference is the one that was made."""
    return (
        found.kind in expected.kinds
        and expected.rollout in (None, found.rollout_id)
        and expected.call in (None, found.call_id)
        and expected.step in (None, found.step)
        and expected.of in (found.of or "")
        and expected.text in found.text
    )


def edit(name: str) -> Callable[[Edit], Edit]:
    def enter(function: Edit) -> Edit:
        EDITS[name] = function
        return function

    return enter


def database(folder: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(folder / "store.sqlite", isolation_level=None))


def one(db: sqlite3.Connection, random: Random, query: str, *values: Any) -> tuple[Any, ...]:
    """Any row of a query."""
    rows = db.execute(query, values).fetchall()
    if not rows:
        raise NotHere(f"no row: {query}")
    chosen: tuple[Any, ...] = random.choice(rows)
    return chosen


def stored_whole(db: sqlite3.Connection, rollout_id: str) -> dict[str, Call]:
    """The calls of a rollout by their ids, and each is stored whole from here on: what is done to one of them
    changes no other.
    """
    columns = ", ".join(column.name for column in CALL_COLUMNS)
    rows = db.execute(
        f"SELECT {columns} FROM calls WHERE rollout_id = ? ORDER BY seq", (rollout_id,)
    ).fetchall()
    calls = {call.call_id: call for call in whole_calls(stored_calls(rows))}
    for call in calls.values():
        store(db, call)
    return calls


def store(db: sqlite3.Connection, call: Call) -> None:
    """Put a call in the place of the one on file."""
    db.execute("UPDATE calls SET data = ? WHERE call_id = ?", (pack(call_body(call)), call.call_id))


# --------------------------------------------------------------------------------------- rollouts of a step
TRAINED = "rollout_id IN (SELECT rollout_id FROM fingerprints)"
LATEST = (
    f"{TRAINED} AND attempt_id IN (SELECT a.attempt_id FROM attempts a JOIN rollouts r "
    "ON r.rollout_id = a.rollout_id AND r.attempts = a.sequence_id)"
)
"""What was trained: of an earlier attempt, only the number of its calls is fingerprinted."""
EVALUATED = "rollout_id IN (SELECT rollout_id FROM rollouts WHERE group_id LIKE '%/eval/after/1/%')"


def reward(where: str, *, of: str = "") -> Edit:
    def change(folder: Path, random: Random) -> Expected:
        with database(folder) as db:
            columns = "seq, rollout_id, attempt_id, sequence, name, data"
            seq, rollout, attempt, sequence, name, data = one(
                db, random, f"SELECT {columns} FROM spans WHERE name = ? AND {where}", semconv.REWARD_SPAN
            )
            ids = {"rollout_id": rollout, "attempt_id": attempt, "sequence_id": sequence, "name": name}
            span = unpack_span(data, **ids)
            then = float(span.attributes[semconv.REWARD_VALUE])
            span.attributes = {**span.attributes, semconv.REWARD_VALUE: 1.0 - then}
            db.execute("UPDATE spans SET data = ? WHERE seq = ?", (pack_span(span), seq))
        return Expected(("reward",), rollout=rollout, of=of, text=f"reward was {then}")

    return change


EDITS["a reward"] = reward(LATEST)
EDITS["a task's reward in the evaluation after"] = reward(EVALUATED, of="eval/after/1")


def call(change: Callable[[Call], Any], text: str, where: str = LATEST, of: str = "") -> Edit:
    def changed(folder: Path, random: Random) -> Expected:
        with database(folder) as db:
            query = f"SELECT call_id, rollout_id FROM calls WHERE {where} AND status = 'ok'"
            call_id, rollout_id = one(db, random, query)
            found = stored_whole(db, rollout_id)[call_id]
            change(found)
            store(db, found)
        return Expected(("call",), rollout=found.rollout_id, call=found.call_id, of=of, text=text)

    return changed


def _text(found: Call) -> None:
    request = dict(found.request or {})
    request["messages"] = [*request.get("messages", []), {"role": "user", "content": "say yes"}]
    found.request = request


def _answer(found: Call) -> None:
    found.response = {**(found.response or {}), "message": "no"}


def _first(name: str, by: float) -> Callable[[Call], None]:
    def change(found: Call) -> None:
        values = list(getattr(found, name) or ())
        if not values:
            raise NotHere(f"a call without {name}")
        setattr(found, name, [values[0] + by, *values[1:]])

    return change


EDITS["a call's prompt ids"] = call(_first("prompt_ids", 1), "token ids")
EDITS["a call's response ids"] = call(_first("response_ids", 1), "token ids")
EDITS["a call's logprob"] = call(_first("logprobs", -0.125), "logprobs")
EDITS["a call's tags"] = call(lambda found: found.tags.update(agent="another"), "tags")
EDITS["a call's request"] = call(_text, "request")
EDITS["a call's response"] = call(
    lambda found: setattr(found, "response", {**(found.response or {}), "message": "no"}), "response"
)
EDITS["a call of an evaluation"] = call(_text, "request", EVALUATED, "eval/after/1")


@edit("a call's policy version")
def version(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        where = f"{LATEST} AND policy_version IS NOT NULL"
        call_id, rollout = one(db, random, f"SELECT call_id, rollout_id FROM calls WHERE {where}")
        db.execute("UPDATE calls SET policy_version = policy_version + 7 WHERE call_id = ?", (call_id,))
    return Expected(("call",), rollout=rollout, call=call_id, text="policy version")


@edit("a call removed")
def call_removed(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        call_id, rollout = one(db, random, f"SELECT call_id, rollout_id FROM calls WHERE {LATEST}")
        stored_whole(db, rollout)
        db.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
    return Expected(("calls",), rollout=rollout, call=call_id)


@edit("a call removed that another builds on")
def parent_removed(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        rows = db.execute(f"SELECT rollout_id, data FROM calls WHERE {LATEST}").fetchall()
        parents = [(unpack(data, CallBody).ids_parent, rollout) for rollout, data in rows]
        known = [pair for pair in parents if pair[0] is not None]
        if not known:
            raise NotHere("no call that builds on another")
        call_id, rollout = random.choice(known)
        db.execute("DELETE FROM calls WHERE call_id = ?", (call_id,))
    return Expected(
        ("unreadable",), rollout=rollout, text=f"builds on call {call_id}, which is not in the store"
    )


@edit("a call added")
def call_added(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        call_id, rollout = one(db, random, f"SELECT call_id, rollout_id FROM calls WHERE {LATEST}")
        stored_whole(db, rollout)
        _copy(db, "calls", "call_id = ?", (call_id,), call_id=f"{call_id}x", sequence=99)
    return Expected(("calls",), rollout=rollout, call=f"{call_id}x")


@edit("a rollout's status")
def status(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        (rollout,) = one(
            db, random, f"SELECT rollout_id FROM rollouts WHERE {TRAINED} AND status = 'succeeded'"
        )
        db.execute("UPDATE rollouts SET status = 'failed' WHERE rollout_id = ?", (rollout,))
    return Expected(("status",), rollout=rollout)


@edit("a rollout's task")
def task(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        (rollout,) = one(db, random, f"SELECT rollout_id FROM rollouts WHERE {TRAINED}")
        db.execute("UPDATE rollouts SET seed = coalesce(seed, 0) + 1 WHERE rollout_id = ?", (rollout,))
    return Expected(("rollout",), rollout=rollout)


@edit("a rollout removed")
def rollout_removed(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        (rollout,) = one(db, random, f"SELECT rollout_id FROM rollouts WHERE {TRAINED}")
        db.execute("DELETE FROM rollouts WHERE rollout_id = ?", (rollout,))
    return Expected(("missing",), rollout=rollout)


@edit("a rollout added")
def rollout_added(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        (rollout,) = one(db, random, f"SELECT rollout_id FROM rollouts WHERE {TRAINED}")
        _copy(db, "rollouts", "rollout_id = ?", (rollout,), rollout_id="ro-added")
    return Expected(("added",), rollout="ro-added")


def _copy(db: sqlite3.Connection, table: str, where: str, values: tuple[Any, ...], **changed: Any) -> None:
    """Copy the rows of a table with other values in some columns."""
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "seq"]
    for row in db.execute(f"SELECT {', '.join(names)} FROM {table} WHERE {where}", values).fetchall():
        found = {**dict(zip(names, row, strict=True)), **changed}
        marks = ", ".join("?" for _ in names)
        db.execute(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", [found[n] for n in names])


# ------------------------------------------------------------------------------------ steps and fingerprints
def _step(db: sqlite3.Connection, random: Random) -> tuple[int, int]:
    """Any step but the first and the last, and the last."""
    steps = sorted({step for (step,) in db.execute("SELECT step FROM steps")})
    if len(steps) < 3:
        raise NotHere("a run of less than three steps")
    return random.choice(steps[1:-1]), steps[-1]


def _report(db: sqlite3.Connection, step: int) -> tuple[str, StepReport]:
    policy, blob = db.execute("SELECT policy, report FROM steps WHERE step = ?", (step,)).fetchone()
    return policy, unpack(blob, StepReport)


def _insert(db: sqlite3.Connection, policy: str, report: StepReport) -> None:
    values = (report.run_id, report.step, policy, pack(report))
    db.execute("INSERT INTO steps VALUES (?, ?, ?, 0, ?)", values)


@edit("a step's metric")
def metric(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        step, _ = _step(db, random)
        policy, report = _report(db, step)
        name = random.choice(sorted(report.metrics))
        report.metrics[name] += 0.5
        key = (pack(report), step, policy)
        db.execute("UPDATE steps SET report = ? WHERE step = ? AND policy = ?", key)
    return Expected(("report",), step=step, text=f"metrics.{name}")


@edit("a step removed")
def step_removed(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        step, _ = _step(db, random)
        db.execute("DELETE FROM steps WHERE step = ?", (step,))
        db.execute("DELETE FROM fingerprints WHERE step = ?", (step,))
    return Expected(("step", "fingerprints"), step=step)


@edit("the last step removed")
def last_step_removed(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        _, last = _step(db, random)
        db.execute("DELETE FROM steps WHERE step = ?", (last,))
        db.execute("DELETE FROM fingerprints WHERE step = ?", (last,))
    return Expected(("step", "fingerprints"), step=last)


@edit("a step added")
def step_added(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        step, last = _step(db, random)
        policy, report = _report(db, step)
        report.step, report.metrics = last + 1, {**report.metrics, "reward_mean": 1.0}
        db.execute(
            "INSERT INTO steps VALUES (?, ?, ?, 0, ?)", (report.run_id, last + 1, policy, pack(report))
        )
    return Expected(("step",), step=last + 1)


@edit("a step copied behind the last")
def step_copied(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        step, last = _step(db, random)
        policy, report = _report(db, step)
        report.step = last + 1
        db.execute(
            "INSERT INTO steps VALUES (?, ?, ?, 0, ?)", (report.run_id, last + 1, policy, pack(report))
        )
        for (blob,) in db.execute("SELECT fingerprint FROM fingerprints WHERE step = ?", (step,)).fetchall():
            fingerprint = msgspec.structs.replace(unpack(blob, RolloutFingerprint), step=last + 1)
            values = (fingerprint.run_id, last + 1, policy, fingerprint.rollout_id, pack(fingerprint))
            columns = "run_id, step, policy, rollout_id, fingerprint"
            db.execute(f"INSERT INTO fingerprints ({columns}) VALUES (?, ?, ?, ?, ?)", values)
    return Expected(("step",), step=last + 1, text=f"copy of step {step}")


@edit("a step copied over another")
def step_over(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        step, last = _step(db, random)
        policy, report = _report(db, last)
        report.step = step
        db.execute("UPDATE steps SET report = ? WHERE step = ? AND policy = ?", (pack(report), step, policy))
    return Expected(("report",), step=step, text=f"that of step {last}")


@edit("two steps exchanged")
def steps_exchanged(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        step, _ = _step(db, random)
        for a, b in ((step, -1), (step + 1, step), (-1, step + 1)):
            db.execute("UPDATE steps SET step = ? WHERE step = ?", (b, a))
    return Expected(("step",), step=step, text="exchanged")


@edit("a fingerprint")
def fingerprint_edited(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        seq, blob = one(db, random, "SELECT seq, fingerprint FROM fingerprints")
        fingerprint = unpack(blob, RolloutFingerprint)
        fingerprint.reward = 1.0 - (fingerprint.reward or 0.0)
        db.execute("UPDATE fingerprints SET fingerprint = ? WHERE seq = ?", (pack(fingerprint), seq))
    return Expected(("fingerprint",), rollout=fingerprint.rollout_id, step=fingerprint.step, text="reward")


@edit("a fingerprint removed")
def fingerprint_removed(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        seq, rollout, step = one(db, random, "SELECT seq, rollout_id, step FROM fingerprints")
        db.execute("DELETE FROM fingerprints WHERE seq = ?", (seq,))
    return Expected(("fingerprint",), rollout=rollout, step=step)


# ------------------------------------------------------------------------------- what the run says of itself
def record(change: Callable[[dict[str, Any]], Any], kinds: tuple[str, ...], of: str, text: str = "") -> Edit:
    """Change the run's record in the store."""

    def changed(folder: Path, random: Random) -> Expected:
        with database(folder) as db:
            ((run_id, blob),) = db.execute("SELECT run_id, info FROM runs").fetchall()
            info = unpack(blob)
            try:
                change(info)
            except KeyError as missing:
                raise NotHere(f"no {missing}") from None
            db.execute("UPDATE runs SET info = ? WHERE run_id = ?", (pack(info), run_id))
        return Expected(kinds, of=of, text=text)

    return changed


def file(name: str, change: Callable[[dict[str, Any]], Any], kind: str, text: str) -> Edit:
    """Change a JSON file of the run's folder."""

    def changed(folder: Path, random: Random) -> Expected:
        value = json.loads((folder / name).read_text())
        try:
            change(value)
        except KeyError as missing:
            raise NotHere(f"no {missing}") from None
        (folder / name).write_text(json.dumps(value, indent=2))
        return Expected((kind,), of=name, text=text)

    return changed


def _evaluated(info: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = info["evaluations"]["eval/after/1"]["evaluation"]
    return found


EDITS["an evaluation's reward in the record"] = record(
    lambda info: _evaluated(info).update(reward=0.123), ("evaluation",), "eval/after/1", "evaluation.reward"
)
EDITS["a task's reward in the record"] = record(
    lambda info: _evaluated(info)["rewards"].__setitem__(0, 0.25),
    ("evaluation",),
    "eval/after/1",
    "rewards[0]",
)
EDITS["an evaluation removed"] = record(
    lambda info: info["evaluations"].pop("eval/after/1"), ("evaluation",), "eval/after/1"
)
EDITS["an evaluation added"] = record(
    lambda info: info["evaluations"].update({"eval/more/1": info["evaluations"]["eval/after/1"]}),
    ("evaluation",),
    "eval/more/1",
)
EDITS["the record's seed"] = record(lambda info: info.update(seed=999), ("run",), "the run's record", "seed")
EDITS["the record's recipe"] = record(
    lambda info: info["recipe"].update(clip_high=0.9), ("run",), "the run's record", "recipe.clip_high"
)
EDITS["the record's headline"] = record(
    lambda info: info["summary"].update(reward_after=0.123), ("summary",), "record", "reward_after"
)
EDITS["run.json's seed"] = file("run.json", lambda run: run.update(seed=999), "run", "seed")
EDITS["run.json's recipe"] = file(
    "run.json", lambda run: run["recipe"].update(gamma=0.5), "run", "recipe.gamma"
)
EDITS["summary.json's headline"] = file(
    "summary.json", lambda summary: summary.update(reward_after=0.123), "summary", "reward_after"
)
EDITS["summary.json's totals"] = file(
    "summary.json", lambda summary: summary["totals"].update(calls=1.0), "summary", "totals.calls"
)
EDITS["the head in summary.json"] = file(
    "summary.json", lambda summary: summary["chain"].update(head="0" * 64), "summary", "chain.head"
)


@edit("a metric in metrics.jsonl")
def metric_line(folder: Path, random: Random) -> Expected:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    at = random.randrange(len(lines))
    lines[at]["metrics"]["reward_mean"] = 2.0
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Expected(("metrics",), step=lines[at]["step"], text="metrics.reward_mean")


@edit("a reward in evaluations.jsonl")
def evaluation_line(folder: Path, random: Random) -> Expected:
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    at = random.randrange(len(lines))
    lines[at]["reward"] = 2.0
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Expected(("evaluations",), text=f"evaluation {lines[at]['name']}: reward")


def lines(change: Callable[[list[str], int], Any], text: str) -> Edit:
    """Change the lines of ``metrics.jsonl``; ``change`` is given them and a place."""

    def changed(folder: Path, random: Random) -> Expected:
        found = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
        if len(found) < 3:
            raise NotHere("less than three steps")
        change(found, random.randrange(1, len(found) - 1))
        (folder / "metrics.jsonl").write_text("".join(found))
        return Expected(("metrics",), of="metrics.jsonl", text=text)

    return changed


EDITS["a line of metrics.jsonl removed"] = lines(lambda found, at: found.pop(at), "missing")
EDITS["a line of metrics.jsonl copied"] = lines(lambda found, at: found.append(found[at]), "copied")
EDITS["two lines of metrics.jsonl exchanged"] = lines(
    lambda found, at: found.insert(at - 1, found.pop(at)), "moved"
)


# --------------------------------------------------------------------------------- checkpoints and the policy
def _checkpoint(folder: Path, random: Random) -> Path:
    found = sorted(p for p in folder.glob("checkpoints/*") if p.is_dir())
    if not found:
        raise NotHere("a run without checkpoints")
    return found[-1]


def _flip(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1
    path.write_bytes(data)


@edit("a checkpoint's file")
def checkpoint_file(folder: Path, random: Random) -> Expected:
    checkpoint = _checkpoint(folder, random)
    path = random.choice(sorted(p for p in checkpoint.rglob("*") if p.is_file() and p.stat().st_size))
    _flip(path, random)
    return Expected(
        ("checkpoint",), of=f"checkpoints/{checkpoint.name}", text=str(path.relative_to(checkpoint))
    )


@edit("a checkpoint removed")
def checkpoint_removed(folder: Path, random: Random) -> Expected:
    checkpoint = _checkpoint(folder, random)
    shutil.rmtree(checkpoint)
    return Expected(("checkpoint",), of=f"checkpoints/{checkpoint.name}")


@edit("a checkpoint added")
def checkpoint_added(folder: Path, random: Random) -> Expected:
    checkpoint = _checkpoint(folder, random)
    shutil.copytree(checkpoint, checkpoint.with_name("step-999999"))
    return Expected(("checkpoint",), of="checkpoints/step-999999")


@edit("the exported policy")
def policy(folder: Path, random: Random) -> Expected:
    files = sorted(p for p in (folder / "policy").rglob("*") if p.is_file() and p.stat().st_size)
    if not files:
        raise NotHere("a run without an exported policy")
    path = random.choice(files)
    _flip(path, random)
    return Expected(("policy",), of="policy", text=str(path.relative_to(folder / "policy")))


# ------------------------------------------------------------------------------------------------- the chain
def _links(db: sqlite3.Connection) -> list[AuditLink]:
    rows = db.execute("SELECT link FROM links ORDER BY number").fetchall()
    return [unpack(blob, AuditLink) for (blob,) in rows]


def _store(db: sqlite3.Connection, link: AuditLink) -> None:
    key = (pack(link), link.run_id, link.number)
    db.execute("UPDATE links SET link = ? WHERE run_id = ? AND number = ?", key)


@edit("a link's body")
def link_body(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        link = random.choice([one for one in _links(db) if one.kind == "evaluation"])
        link.body["evaluation"]["reward"] = 2.0
        _store(db, link)
    return Expected(("chain",), text=f"link {link.number} ", also=("evaluation", "evaluations", "added"))


@edit("a link's head")
def link_head(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        link = random.choice([one for one in _links(db)[1:-1] if one.kind == "step"])
        link.head = "0" * 64
        _store(db, link)
    return Expected(("chain",), also=("metrics",))


@edit("the last link removed")
def last_link(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        db.execute("DELETE FROM links WHERE number = (SELECT max(number) FROM links)")
    return Expected(("chain",))


@edit("the chain removed")
def chain_removed(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        db.execute("DELETE FROM links")
    return Expected(("chain",), also=("summary",))


def _anew(db: sqlite3.Connection) -> str:
    """Make the whole chain anew, with nothing left that contradicts it; the head it had before."""
    chain = _links(db)
    then, before = chain[-1].head, ""
    for link in chain:
        if link.kind == "begin":
            link.body["info"]["note"] = "another note"
        link.previous, link.signature = before, None
        link.head = before = compute_head(link)
        _store(db, link)
    return then


@edit("the chain made anew, its head kept elsewhere")
def anew(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        head = _anew(db)
    return Expected(("head",), head=head, also=("run", "summary"))


@edit("the chain of a signed run made anew")
def anew_signed(folder: Path, random: Random) -> Expected:
    with database(folder) as db:
        for link in _links(db):
            link.signature = sign(link.head, KEY)
            _store(db, link)
        _anew(db)
    return Expected(("signature",), keyed=True, also=("run", "summary"))
