"""Stores for the tests of the dashboard in a browser: ``python bench/dashboard/stores.py FOLDER``.

``many-10k``, ``many-100k``: so many rollouts, each with a call and a reward. ``long``: a call of 100,000
tokens. ``hostile``: strings that would harm a page, in every field that an agent, or whoever queues its
tasks, writes; ``hostile.json`` says which string stands where. ``empty``: a store without anything.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agentlightning import semconv
from agentlightning.capture.emit import BODY, INPUT, NAME, OUTPUT
from agentlightning.recipes import GRPO
from agentlightning.store import SQLiteStore
from agentlightning.types import AttemptStatus, Call, Rollout, RolloutConfig, Span, StepReport
from agentlightning.types.failure import TRACEBACK

KINDS = 16
"""Different rollouts that the large stores repeat."""
LONG = 100_000
PAYLOADS = (
    '<script>hurt("{0}")</script>',
    "<img src=x onerror=\"hurt('{0}')\">",
    '"><svg onload=hurt("{0}")>',
    "' onmouseover='hurt(\"{0}\")' data-hurt='{0}",
    '</textarea></pre></title></script><b data-hurt="{0}">b</b>',
    'javascript:hurt("{0}")//',
    '<a href="javascript:hurt(\'{0}\')" data-hurt="{0}">a</a>',
    "<iframe srcdoc=\"<script>parent.hurt('{0}')</script>\"></iframe>",
    "{{{{ self.hurt('{0}') }}}}{{% raw %}}",
    '\u202e<style data-hurt="{0}">*{{display:none}}</style>\x00\x1b[31m',
    "<!--<math><mtext><table><mglyph><style><!--</style>"
    "<img title='--&gt;&lt;img src=x onerror=hurt(\"{0}\")&gt;'>",
    '&lt;script&gt;hurt("{0}")&lt;/script&gt;<details open ontoggle=hurt("{0}")>',
)
"""``{0}``: a number that says which string and which field it was."""


class Hostile:
    """Hands out strings, each with a number of its own, and remembers for which field."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}

    def __call__(self, field: str) -> str:
        """All strings, for one field."""
        out = []
        for payload in PAYLOADS:
            number = f"x{len(self.fields)}x"
            self.fields[number] = field
            out.append(f"{number} " + payload.format(number))
        return "\n".join(out)

    def one(self, field: str) -> str:
        """One string, for a field that is an id or stands in lists."""
        number = f"x{len(self.fields)}x"
        payload = PAYLOADS[len(self.fields) % len(PAYLOADS)].format(number)
        self.fields[number] = field
        return f"{number} {payload}".replace("\x00", "").replace("\x1b", "")


def info(run: str, **more: Any) -> dict[str, Any]:
    """The record of a run."""
    return {"run_id": run, "recipe": GRPO(group_size=2).model_dump(), "steps": 1, "driver": "local",
            "about": {"agent": "generated"}, "summary": {"total_seconds": 1.0}, **more}  # fmt: skip


def reward(value: float, name: str = "reward", **more: Any) -> Span:
    attributes = {semconv.REWARD_VALUE: value, semconv.REWARD_NAME: name, semconv.REWARD_FINAL: True, **more}
    return Span(rollout_id="", attempt_id="", name=semconv.REWARD_SPAN, attributes=attributes, start_time=2.0,
                end_time=2.0)  # fmt: skip


async def made(
    store: SQLiteStore, rollout: Rollout, calls: list[dict[str, Any]], spans: list[Span],
    status: AttemptStatus = AttemptStatus.SUCCEEDED, reason: str | None = None, worker: str = "worker-1",
    metadata: dict[str, Any] | None = None,
) -> str:  # fmt: skip
    """One rollout, run by a worker; returns its attempt."""
    await store.enqueue_many_rollouts([rollout])
    lease = await store.dequeue_rollout(worker, run_id=rollout.run_id)
    assert lease is not None
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": lease.attempt.attempt_id}
    for n, call in enumerate(calls):
        await store.add_calls(
            [Call(**{"call_id": f"{ids['attempt_id']}-{n}.0", "sequence": n, **ids, **call})]
        )
    for span in spans:
        span.rollout_id, span.attempt_id = ids["rollout_id"], ids["attempt_id"]
    await store.update_attempt(**ids, status=status, reason=reason, spans=spans, metadata=metadata)
    return ids["attempt_id"]


async def many(file: Path, count: int) -> None:
    """``count`` rollouts: some are made through the store, the rest repeat them in SQL."""
    store, run = SQLiteStore(file), file.parent.name
    await store.add_run(run, info(run))
    for n in range(KINDS):
        task = {"question": f"What is {n} + {n * n}?", "number": n}
        rollout = Rollout(rollout_id=f"kind-{n:02d}", input=task, run_id=run, task_id=f"t{n}",
                          group_id=f"{run}/train/0/{n // 2}", sample=n % 2)  # fmt: skip
        call = {"prompt_ids": list(range(20)), "response_ids": list(range(n + 2)),
                "logprobs": [-0.1] * (n + 2), "prompt_tokens": 20, "completion_tokens": n + 2,
                "tags": {"agent": "solver"},
                "request": {"messages": [{"role": "user", "content": task["question"]}]},
                "response": {"message": {"role": "assistant", "content": str(n + n * n)}}}  # fmt: skip
        failed = n % 5 == 4
        status = AttemptStatus.FAILED if failed else AttemptStatus.SUCCEEDED
        reason = "agent-raised: ValueError: no number" if failed else None
        await made(store, rollout, [call], [] if failed else [reward(n / KINDS)], status, reason)
    for table in ("rollouts", "attempts", "calls", "spans"):
        _repeat(store, table, count - KINDS)
    await store.close()


_NEW = {
    "seq": "NULL",
    "rollout_id": "printf('ro-%06d', n.i)",
    "attempt_id": "printf('at-%06d', n.i)",
    "call_id": "printf('at-%06d-0.0', n.i)",
    "task_id": "printf('t%d', n.i % 997)",
    "group_id": "t.run_id || printf('/train/%d/%d', n.i / 1000, n.i / 4 % 250)",
    "sample": "n.i % 4",
    "start_time": "t.start_time + n.i",
    "end_time": "t.end_time + n.i + (n.i % 37) / 10.0",
}
"""Column → its value in a repeated row."""


def _repeat(store: SQLiteStore, table: str, count: int) -> None:
    connection = store.db.connection
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    values = ", ".join(_NEW.get(name, f"t.{name}") if name in names else "" for name in names)
    connection.execute(
        f"WITH RECURSIVE n(i) AS "
        f"(SELECT {KINDS} UNION ALL SELECT i + 1 FROM n WHERE i < {KINDS + count - 1}) "
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {values} FROM n "
        f"JOIN {table} t ON t.rollout_id = printf('kind-%02d', n.i % {KINDS})"
    )


async def long(file: Path) -> None:
    """A call of 100,000 tokens, half of them its prompt."""
    store, run = SQLiteStore(file), file.parent.name
    await store.add_run(run, info(run))
    half = LONG // 2
    call = {
        "prompt_ids": [i % 300 for i in range(half)],
        "response_ids": [i % 251 for i in range(half)],
        "logprobs": [-(i % 50) / 10 for i in range(half)],
        "prompt_tokens": half,
        "completion_tokens": half,
        "tags": {"agent": "writer"},
        "request": {"messages": [{"role": "user", "content": "word " * half}]},
        "response": {"message": {"role": "assistant", "content": "word " * half}},
    }
    for n in range(2):
        rollout = Rollout(rollout_id=f"ro-long-{n}", input="write", run_id=run, task_id="t", sample=n,
                          group_id=f"{run}/train/0/0")  # fmt: skip
        await made(store, rollout, [call], [reward(float(n))])
    await store.close()


async def hostile(file: Path, of: Hostile) -> None:
    """Rollouts whose every field harms whoever shows it as markup; resources, workers and counts alike."""
    store, run = SQLiteStore(file), "hostile"
    await store.add_run(run, info(run, note=of("run note"), about={"agent": of.one("run agent")},
                                  options={of.one("option name"): of.one("option value")}))  # fmt: skip
    await store.add_resources(
        {of.one("resource name"): of("prompt template"), "json": {"value": of("json resource")}},
        resources_id="rs-hostile",
    )
    await store.update_resources("rs-hostile", {"text": of("prompt, version 2")})
    words = {"role": of.one("message role"), "name": of.one("message name"), "content": of("message content")}
    tool = {"function": {"name": of.one("tool call name"), "arguments": of("tool call arguments")}}
    call = {
        "prompt_ids": [1, 2, 3], "response_ids": [4, 5], "logprobs": [-0.1, -2.0],
        "policy": of.one("policy"), "model": of.one("model"), "status": "ok",
        "error": of("call error"), "finish_reason": of.one("finish reason"), "masked": of.one("masked"),
        "tags": {"agent": of.one("tag agent"), of.one("tag name"): of.one("tag value")},
        "request": {"messages": [words, {"role": "user", "content": [{"type": of.one("part type")}]}],
                    "tools": of("request tools")},
        "response": {"message": {"role": "assistant", "content": of("answer"), "tool_calls": [tool]}},
        "sampling": {of.one("sampling name"): of.one("sampling value")},
        "edited": {"over_length": of.one("edited")},
    }  # fmt: skip
    spans = [
        reward(0.5, of.one("reward name"), **{of.one("reward attribute"): of.one("reward attribute value")}),
        _span(of.one("span name"), {semconv.AGENT_NAME: of.one("span agent")}, 1),
        _span("agent", {semconv.OPERATION_NAME: "invoke_agent", semconv.AGENT_NAME: of.one("lane")}, 2),
        _span("tool", {semconv.TOOL_NAME: of.one("tool name"),
                       semconv.TOOL_CALL_ARGUMENTS: of("tool arguments"),
                       semconv.TOOL_CALL_RESULT: of("tool result")}, 3),
        _span(semconv.OPERATION_SPAN, {NAME: of.one("operation"), INPUT: of("operation input"),
                                       OUTPUT: of("operation output")}, 4),
        _span(semconv.MESSAGE_SPAN, {BODY: of("message body")}, 5),
        _span(semconv.EXCEPTION_SPAN, {semconv.EXCEPTION_TYPE: of.one("exception type"),
                                       semconv.EXCEPTION_MESSAGE: of("exception message")}, 6),
    ]  # fmt: skip
    rollout = Rollout(rollout_id="ro-hostile", input={of.one("task key"): of("task value")}, run_id=run,
                      task_id=of.one("task id"), group_id=of.one("group id"),
                      config=RolloutConfig(max_attempts=1))  # fmt: skip
    await made(store, rollout, [call], spans, AttemptStatus.FAILED, f"agent-raised: {of('failure reason')}",
               of.one("worker id"), {TRACEBACK: of("traceback")})  # fmt: skip
    other = Rollout(rollout_id="ro-" + of.one("rollout id"), input=of("task text"), run_id=run,
                    group_id=rollout.group_id, sample=1)  # fmt: skip
    await made(store, other, [{**call, "call_id": "at-" + of.one("call id") + "-0.0"}], [reward(1.0)])
    await store.count(of.one("count kind"), of.one("count reason"), n=3)
    metrics = {"reward_mean": 0.5, "calls": 1.0, "loss": 0.1, f"left_out/{of.one('left-out reason')}": 1.0}
    await store.add_step(StepReport(run_id=run, step=0, policy="policy", policy_version=1, metrics=metrics,
                                    seconds={of.one("phase"): 1.0}))  # fmt: skip
    await store.close()


def _span(name: str, attributes: dict[str, Any], at: int) -> Span:
    return Span(rollout_id="", attempt_id="", name=name, span_id=f"{at:016x}", trace_id="0" * 31 + "1",
                start_time=1.0 + at / 10, end_time=1.05 + at / 10, attributes=attributes)  # fmt: skip


async def main(root: Path) -> None:
    for name in ("many-10k", "many-100k", "long", "hostile", "empty"):
        (root / name).mkdir(parents=True)
    await SQLiteStore(root / "empty" / "store.sqlite").close()
    of = Hostile()
    await hostile(root / "hostile" / "store.sqlite", of)
    (root / "hostile.json").write_text(json.dumps(of.fields), encoding="utf-8")
    await long(root / "long" / "store.sqlite")
    await many(root / "many-10k" / "store.sqlite", 10_000)
    await many(root / "many-100k" / "store.sqlite", 100_000)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
