"""Whatever one thing is changed in the store of a run, verify names it, unless no fingerprint covers it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from contract.rich import RUN, make_rich
from contract.runs import plugins
from drills.edits import store, stored_whole
from marks import sampled

from agentlightning import semconv
from agentlightning.store.codec import pack, pack_span, unpack, unpack_span
from agentlightning.types import Call, Grammar, RolloutFingerprint, Span
from agl_audit.run import open_run
from agl_audit.verification.verify import Verification, verify

Named = tuple[str | None, set[str]]
"""The rollout that must be named (``None``: none in particular), and the kinds that say it rightly."""
Tampering = Callable[[sqlite3.Connection, Random], Named]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(make_rich(tmp_path_factory.mktemp("rich")))


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / RUN))


async def verified(folder: Path) -> Verification:
    async with open_run(str(folder), plugins=plugins()) as run:
        return await verify(run)


# -------------------------------------------------------------------------------------------------- tampering
def call(change: Callable[[Call, Random], Any], *kinds: str) -> Tampering:
    """Change any call of a latest attempt that ``change`` does not refuse (by returning ``False``)."""

    def tamper(db: sqlite3.Connection, random: Random) -> Named:
        rows = db.execute(
            "SELECT c.call_id, c.rollout_id FROM calls c JOIN rollouts r USING (rollout_id) "
            "JOIN attempts a ON a.attempt_id = c.attempt_id AND a.sequence_id = r.attempts"
        ).fetchall()
        random.shuffle(rows)
        for call_id, rollout_id in rows:
            found = stored_whole(db, rollout_id)[call_id]
            if change(found, random) is not False:
                store(db, found)
                return found.rollout_id, set(kinds or ("call",))
        raise AssertionError("no such call")

    return tamper


def span(name: str | None, change: Callable[[Span, Random], Any], *kinds: str) -> Tampering:
    """Change any span of this name; ``None``: any of the wire layer."""

    def tamper(db: sqlite3.Connection, random: Random) -> Named:
        where = "wire = 1" if name is None else f"name = '{name}'"
        rows = db.execute(
            f"SELECT seq, rollout_id, attempt_id, sequence, name, data FROM spans WHERE {where}"
        ).fetchall()
        seq, rollout, attempt, sequence, named, blob = random.choice(rows)
        found = unpack_span(blob, rollout_id=rollout, attempt_id=attempt, sequence_id=sequence, name=named)
        found.attributes = dict(found.attributes)
        change(found, random)
        db.execute("UPDATE spans SET data = ? WHERE seq = ?", (pack_span(found), seq))
        return rollout, set(kinds)

    return tamper


def removed(table: str, where: str, *kinds: str) -> Tampering:
    def tamper(db: sqlite3.Connection, random: Random) -> Named:
        rows = db.execute(f"SELECT t.*, t.rollout_id FROM {table} t WHERE {where}").fetchall()
        names = [d[0] for d in db.execute(f"SELECT * FROM {table} LIMIT 0").description]
        row = dict(zip(names, random.choice(rows), strict=False))
        keys = [k for k in ("seq", "rollout_id", "attempt_id") if k in row]
        db.execute(
            f"DELETE FROM {table} WHERE {' AND '.join(f'{k} = ?' for k in keys)}", [row[k] for k in keys]
        )
        return row["rollout_id"], set(kinds)

    return tamper


def column(table: str, name: str, value: Any, where: str, *kinds: str) -> Tampering:
    """Set a column of any row; ``value`` may be an SQL expression."""

    def tamper(db: sqlite3.Connection, random: Random) -> Named:
        rows = db.execute(f"SELECT rowid, rollout_id FROM {table} WHERE {where}").fetchall()
        rowid, rollout = random.choice(rows)
        db.execute(f"UPDATE {table} SET {name} = {value} WHERE rowid = ?", (rowid,))
        return rollout, set(kinds)

    return tamper


def token(field: str) -> Callable[[Call, Random], Any]:
    def change(found: Call, random: Random) -> Any:
        values = list(getattr(found, field) or ())
        if not values:
            return False
        at = random.randrange(len(values))
        values[at] += -0.125 if field == "logprobs" else 1
        setattr(found, field, values)
        return True

    return change


def swapped(db: sqlite3.Connection, random: Random) -> Named:
    a, b = (f"ro-1-{random.randrange(0, 6)}", f"ro-1-{random.randrange(6, 12)}")
    groups = dict(db.execute("SELECT rollout_id, group_id FROM rollouts").fetchall())
    db.execute("UPDATE rollouts SET group_id = ? WHERE rollout_id = ?", (groups[b], a))
    db.execute("UPDATE rollouts SET group_id = ? WHERE rollout_id = ?", (groups[a], b))
    return random.choice([a, b]), {"group"}


def info(change: Callable[[dict[str, Any]], Any]) -> Tampering:
    def tamper(db: sqlite3.Connection, random: Random) -> Named:
        ((blob,),) = db.execute("SELECT info FROM runs").fetchall()
        found = unpack(blob)
        change(found)
        db.execute("UPDATE runs SET info = ?", (pack(found),))
        return None, {"run"}

    return tamper


def supplied(db: sqlite3.Connection, random: Random) -> Named:
    rows = db.execute(
        "SELECT rollout_id, attempt_id, metadata FROM attempts WHERE metadata IS NOT NULL"
    ).fetchall()
    for rollout, attempt, blob in rows:
        if blob is not None and semconv.SUPPLIED in (kept := unpack(blob)):
            kept[semconv.SUPPLIED] = kept[semconv.SUPPLIED][:-1]
            db.execute("UPDATE attempts SET metadata = ? WHERE attempt_id = ?", (pack(kept), attempt))
            return rollout, {"supplied"}
    raise AssertionError("no such attempt")


def fingerprint_of(db: sqlite3.Connection, random: Random) -> Named:
    seq, rollout, blob = random.choice(
        db.execute("SELECT seq, rollout_id, fingerprint FROM fingerprints").fetchall()
    )
    found = unpack(blob, RolloutFingerprint)
    field = random.choice(["reward", "calls_digest", "rewards_digest", "failure", "status", "attempt_id"])
    setattr(found, field, 7.0 if field == "reward" else "edited")
    db.execute("UPDATE fingerprints SET fingerprint = ? WHERE seq = ?", (pack(found), seq))
    return rollout, {"fingerprint"}


def last_step(db: sqlite3.Connection, random: Random) -> Named:
    db.execute("DELETE FROM steps WHERE step = 1")
    if random.random() < 0.5:
        db.execute("DELETE FROM fingerprints WHERE step = 1")
    return None, {"step", "fingerprints"}


def step_without_fingerprints(db: sqlite3.Connection, random: Random) -> Named:
    db.execute("DELETE FROM fingerprints WHERE step = 0")
    return None, {"fingerprints"}


def text(found: Call, random: Random) -> None:
    found.request = {"messages": [{"role": "user", "content": "something else"}]}
    found.response = {"role": "assistant", "content": "something else"}


def later(found: Call, random: Random) -> None:
    found.start_time += 100.0
    found.end_time += 100.0


def worker(db: sqlite3.Connection, random: Random) -> Named:
    rollout = f"ro-{random.randrange(2)}-0"
    db.execute("UPDATE attempts SET worker_id = 'w9' WHERE rollout_id = ?", (rollout,))
    return rollout, {"execution"}


def heartbeat(db: sqlite3.Connection, random: Random) -> Named:
    db.execute("UPDATE attempts SET last_heartbeat_time = 1.0")
    return None, set()


REWARD = semconv.REWARD_SPAN
TAMPERINGS: dict[str, Tampering] = {
    "prompt id": call(token("prompt_ids")),
    "response id": call(token("response_ids")),
    "logprob": call(token("logprobs")),
    "tag": call(lambda c, r: c.tags.update(agent="other")),
    "new tag": call(lambda c, r: c.tags.update(side="white")),
    "mask": call(lambda c, r: setattr(c, "masked", "off-policy-sampling")),
    "selected": call(lambda c, r: setattr(c, "selected", False)),
    "retry": call(lambda c, r: setattr(c, "retry", c.retry + 1)),
    "span of the call": call(lambda c, r: setattr(c, "span_id", "other")),
    "id of the response": call(lambda c, r: setattr(c, "response_id", "other")),
    "sampling": call(lambda c, r: c.sampling.update(temperature=0.5)),
    "allowed": call(lambda c, r: False if c.allowed is None else c.allowed.append([1])),
    "grammar": call(lambda c, r: setattr(c, "grammar", Grammar("llguidance", "0", "start: /a/"))),
    "usage": call(lambda c, r: setattr(c, "prompt_tokens", 77)),
    "over-length": call(lambda c, r: setattr(c, "edited", {"over_length": "drop"})),
    "text": call(text),
    "times of a call": call(later),
    "model asked for": call(lambda c, r: setattr(c, "model", "x")),
    "reason of the end": call(lambda c, r: setattr(c, "finish_reason", "edited")),
    "worker": worker,
    "times of a rollout": column("rollouts", "start_time", "start_time + 5", "1", "rollout"),
    "seed": column("rollouts", "seed", "5", "1", "rollout"),
    "message of a failure": column(
        "rollouts", "reason", "reason || ' and more'", "status = 'failed'", "rollout"
    ),
    "handed in": call(lambda c, r: setattr(c, "api", "chat") if c.api == "supplied" else False),
    "call status": column(
        "calls", "status", "'cancelled'", "status = 'ok' AND rollout_id != 'ro-0-1'", "call"
    ),
    "call version": column("calls", "policy_version", "5", "policy_version IS NOT NULL", "call", "attempts"),
    "call policy": column("calls", "policy", "'other'", "1", "call"),
    "call order": column("calls", "sequence", "sequence + 20", "1", "call"),
    "reward": span(REWARD, lambda s, r: s.attributes.update({semconv.REWARD_VALUE: 0.25}), "reward"),
    "reward is no number": span(
        REWARD, lambda s, r: s.attributes.update({semconv.REWARD_VALUE: "1"}), "reward"
    ),
    "name of a reward": span(
        REWARD, lambda s, r: s.attributes.update({semconv.REWARD_NAME: "style"}), "rewards"
    ),
    "reward of an agent": span(
        REWARD, lambda s, r: s.attributes.update({semconv.REWARD_AGENT: "solver"}), "reward"
    ),
    "ids that the wire saw": span(
        None, lambda s, r: s.attributes.update({semconv.TOKENS_DIGEST: "0" * 64}), "wire"
    ),
    "tag that the wire saw": span(
        None, lambda s, r: s.attributes.update({f"{semconv.TAG_PREFIX}agent": "x"}), "wire"
    ),
    "call removed": removed("calls", "t.rollout_id NOT LIKE 'ro-%-1'", "calls"),
    "call of an earlier attempt removed": removed(
        "calls",
        "t.rollout_id LIKE 'ro-%-1' AND t.attempt_id NOT IN (SELECT a.attempt_id FROM attempts a JOIN "
        "rollouts r ON r.rollout_id = a.rollout_id AND r.attempts = a.sequence_id)",
        "attempts",
    ),
    "reward removed": removed("spans", f"t.name = '{REWARD}'", "reward"),
    "wire span removed": removed("spans", "t.wire = 1", "wire"),
    "latest attempt removed": removed(
        "attempts",
        "t.sequence_id = (SELECT r.attempts FROM rollouts r WHERE r.rollout_id = t.rollout_id)",
        "attempt",
    ),
    "earlier attempt removed": removed(
        "attempts",
        "t.sequence_id < (SELECT r.attempts FROM rollouts r WHERE r.rollout_id = t.rollout_id)",
        "attempts",
    ),
    "rollout removed": removed("rollouts", "1", "missing"),
    "status": column("rollouts", "status", "'cancelled'", "1", "status"),
    "failure": column("rollouts", "reason", "'over-length: x'", "status = 'failed'", "failure"),
    "group": column("rollouts", "group_id", "'elsewhere'", "1", "group"),
    "task": column("rollouts", "task_id", "'another'", "1", "group"),
    "sample": column("rollouts", "sample", "sample + 100", "1", "group"),
    "two groups swapped": swapped,
    "names of an agent's own record": supplied,
    "recipe": info(lambda found: found["recipe"].update(scale="none")),
    "recipe field of the driver": info(lambda found: found["recipe"].update(clip_high=0.3)),
    "failure table": info(lambda found: found["failure"].update({"agent-raised": {"reward": -1.0}})),
    "a number of the failure table": info(lambda found: found["failure"]["timeout"].update(reward=-2.0)),
    "facts of the run": info(lambda found: found.update(about={"agent": "another"})),
    "fingerprint": fingerprint_of,
    "last step": last_step,
    "fingerprints of a step": step_without_fingerprints,
}


@pytest.mark.parametrize("what", sampled(TAMPERINGS, *range(0, len(TAMPERINGS), 4)))
async def test_it_is_named(folder: Path, what: str) -> None:
    random = Random(what)
    for turn in range(2):
        copy = Path(shutil.copytree(folder, folder.parent / f"{turn}" / RUN))
        with sqlite3.connect(copy / "store.sqlite") as db:
            rollout, kinds = TAMPERINGS[what](db, random)
        db.close()
        result = await verified(copy)
        roots = [d for d in result.differences if d.kind != "consequence"]
        assert not result.equal and roots, (what, rollout)
        named = {(d.rollout_id, d.kind) for d in roots}
        hit = [(r, k) for r, k in named if (rollout is None or r == rollout) and k in kinds]
        assert hit, (what, rollout, [d.text for d in result.differences])
        assert not any(d.kind == "code" for d in roots), [d.text for d in roots]
        others = {r for r, _ in named if r not in (rollout, None)}
        assert what == "two groups swapped" or not others, [d.text for d in roots]


IRRELEVANT: dict[str, Tampering] = {
    "heartbeat": heartbeat,
    "tool's result": span(
        "execute_tool calculate", lambda s, r: s.attributes.update({semconv.TOOL_CALL_RESULT: "6"})
    ),
}


@pytest.mark.parametrize("what", IRRELEVANT)
async def test_what_no_fingerprint_covers_changes_nothing(folder: Path, what: str) -> None:
    with sqlite3.connect(folder / "store.sqlite") as db:
        IRRELEVANT[what](db, Random(what))
    db.close()
    result = await verified(folder)
    assert result.equal, [d.text for d in result.differences]
