"""What a large training step costs in Python: from the store's file to verl's process, without a model.

    python bench/step.py                          # 512 rollouts of 20 calls, 8 to 32 thousand tokens each
    python bench/step.py --rollouts 64 --turns 5  # another step
    python bench/step.py --scales 0.25 1 4        # the growth of time and memory

For each size a process writes a store with finished rollouts: conversations that grow with each call, in
groups of eight with unequal rewards. Another process then does what ``agl train`` does between the last
rollout and verl's update: it reads and credits the records, fingerprints them, makes verl's rows, and ships
them over the driver's channel to a child process, which unpacks them into arrays of tokens as verl's process
does. Driver, channel, credit and store are the real ones; the child stands where verl would be.

``seconds``: from the child's question for rows to its last array. Of these, ``seconds_ahead`` are spent on
the groups that end before the last one, while rollouts still run; ``idle_share_at_60s_steps`` is what part of
a step the GPUs would wait for the rest, if everything else takes 60 seconds. ``loop_stall_max_s``: the
longest time for which the event loop of the training process answered nothing. ``peak_mb``: peak resident
memory of the training process. ``linear``: from the smallest size to the largest, seconds and memory (above
that of a process that has only opened the store) grow by at most 20 % for each token. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GROUP = 8
VOCABULARY = 150_000
ANSWERED = 0.25
"""Share of a conversation's tokens that the policy wrote."""
OTHERWISE = 60.0
"""Seconds of a step for rollouts and update."""
PROBE = 0.005
"""Seconds between two looks at the event loop."""
FLAT = 1.2


# ---------------------------------------------------------------------------------------- a step's rollouts
async def make(folder: Path, rollouts: int, turns: int, tokens: tuple[int, int]) -> None:
    """Write the finished rollouts of a step."""
    from agentlightning import semconv
    from agentlightning.store import SQLiteStore
    from agentlightning.types import AttemptStatus, Span

    store = SQLiteStore(folder / "store.sqlite")
    for place in range(rollouts):
        chance = random.Random(place)
        await store.enqueue_rollout(
            {"task": place // GROUP}, group_id=f"g{place // GROUP}", sample=place % GROUP
        )
        lease = await store.dequeue_rollout("bench")
        assert lease is not None
        rollout_id, attempt_id = lease.rollout.rollout_id, lease.attempt.attempt_id
        for call in conversation(chance, rollout_id, attempt_id, turns, chance.randint(*tokens)):
            await store.add_calls([call])
        reward = Span(
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            name=semconv.REWARD_SPAN,
            attributes={semconv.REWARD_VALUE: float(place % 3)},
        )
        await store.update_attempt(rollout_id, attempt_id, AttemptStatus.SUCCEEDED, returned=[reward])
    await store.close()


def conversation(
    chance: random.Random, rollout_id: str, attempt_id: str, turns: int, tokens: int
) -> Iterator[Any]:
    """Calls of an agent that sends its whole history each time; the last has ``tokens`` tokens."""
    from agentlightning.types import Call
    from agentlightning.types.arrays import Floats
    from agentlightning.types.tokens import TokenIds, concat

    written = max(1, round(ANSWERED * tokens / turns))
    history = TokenIds()
    messages: list[dict[str, str]] = []
    for turn in range(turns):
        asked = TokenIds(chance.choices(range(VOCABULARY), k=max(1, tokens // turns - written)))
        answer = TokenIds(chance.choices(range(VOCABULARY), k=written))
        prompt = concat(history, asked)
        messages = [*messages, {"role": "user", "content": f"{turn} {'word ' * len(asked)}"}]
        said = {"role": "assistant", "content": "text " * written}
        yield Call(
            call_id=f"{attempt_id}-{turn}",
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence=turn,
            policy_version=0,
            request={"messages": messages},
            response={"message": said},
            prompt_ids=prompt,
            response_ids=answer,
            logprobs=Floats([-chance.random() for _ in range(written)]),
            sampling={"temperature": 1.0},
            finish_reason="stop",
        )
        messages = [*messages, said]
        history = concat(prompt, answer)


# ------------------------------------------------------------------------------------- the training process
class StepJob:
    """A job of one step whose rollouts have ended."""

    def __init__(self, store: Any, groups: list[list[Any]], folder: Path) -> None:
        from agentlightning.recipes import GRPO

        self.run_id, self.policy, self.seed, self.folder = "bench", "policy", 1, folder
        self.recipe, self.steps, self.first_step = GRPO(group_size=GROUP), 1, 0
        self.store, self.groups = store, groups
        self.metrics: dict[str, float] = {}
        self.seconds: dict[str, float] = {}

    async def collect(self, step: int) -> Any:
        """Credit the step's rollouts and fingerprint them, as the algorithm does."""
        from agentlightning.algorithms import crediting
        from agentlightning.algorithms.crediting import StepCrediting
        from agentlightning.credit.assign import StepCredit
        from agentlightning.credit.fingerprint import add_rows

        began = time.perf_counter()
        credit = StepCrediting(
            self.store, lambda: StepCredit(self.recipe, version=0), run_id=self.run_id, step=step
        )
        crediting.LOOK = 0.0
        await credit.follow(self.groups[:-1], asyncio.Event())
        self.seconds["ahead"] = time.perf_counter() - began
        batch = await credit.add(self.groups)
        self.seconds["credit"] = time.perf_counter() - began
        await asyncio.to_thread(add_rows, credit.fingerprints.values(), batch, policy=self.policy, version=0)
        self.seconds["fingerprints"] = time.perf_counter() - began - self.seconds["credit"]
        return batch

    async def report(self, report: Any) -> None:
        self.metrics = report.metrics

    def progress(self, progress: Any) -> None: ...

    async def evaluate(self, step: int) -> None: ...

    async def saved(self, folder: Path, step: int) -> None: ...

    async def hold(self) -> None: ...

    async def release(self) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}


async def measure(folder: Path) -> dict[str, Any]:
    """Train one step on the folder's store, up to the child's arrays."""
    from agentlightning.store import SQLiteStore
    from agentlightning.store.pages import pages
    from agentlightning.types.work import PolicyFolder
    from agl_verl.driver import VerlDriver

    store = SQLiteStore(folder / "store.sqlite")
    groups: dict[str | None, list[Any]] = {}
    async for page in pages(store.query_rollouts):
        for rollout in page:
            groups.setdefault(rollout.group_id, []).append(rollout)
    job = StepJob(store, list(groups.values()), folder)
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).resolve()}" --role child "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o700)
    (policy := folder / "policy").mkdir()
    (policy / "config.json").write_text("{}", encoding="utf-8")
    driver = VerlDriver(
        PolicyFolder(path=str(policy), name="policy", options={"python": str(python)}), job.recipe
    )
    await driver.start()
    base, stalls = peak_mb(), [0.0]
    probe = asyncio.create_task(watch(stalls))
    await driver.run(job)
    probe.cancel()
    await driver.close()
    await store.close()
    found = {
        name.removeprefix("child_"): value for name, value in job.metrics.items() if name.startswith("child_")
    }
    return {
        "rollouts": sum(map(len, job.groups)),
        "rows": int(found["rows"]),
        "tokens": int(found["tokens"]),
        "seconds": round(found["seconds"], 3),
        **{f"seconds_{name}": round(value, 3) for name, value in job.seconds.items()},
        "loop_stall_max_s": round(max(stalls), 3),
        "peak_mb": round(peak_mb(), 1),
        "before_mb": round(base, 1),
        "mb_shipped": round(found["mb"], 2),
    }


async def watch(stalls: list[float]) -> None:
    """Note the longest time for which the loop did not come back to this."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(PROBE)
        stalls[0] = max(stalls[0], time.perf_counter() - began - PROBE)


def peak_mb() -> float:
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 2**20)


# ------------------------------------------------------------------------------------------------ the child
def child() -> None:
    """Stand in verl's place: fetch the rows of the step, make arrays of them, and say what that took."""
    from agl_verl.process.channel import Channel
    from agl_verl.rows import unpack

    sys.stdin.readline()
    channel = Channel()
    channel.ask("ready", addresses=["http://127.0.0.1:1"], step=0)
    channel.order()
    began = time.perf_counter()
    data = channel.ask("collect", step=1)
    tokens, rows = 0, unpack(data).rows
    for row in rows:
        tokens += len(row.prompt) + len(row.columns().mask)
    told = {
        "rows": len(rows),
        "tokens": tokens,
        "seconds": time.perf_counter() - began,
        "mb": len(data) / 1e6,
    }
    channel.ask("measured", **{f"child_{name}": value for name, value in told.items()})
    with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps({"step": 1, "data": {}}) + "\n")
    channel.ask("finished")
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()


# --------------------------------------------------------------------------------------------------- report
def one_size(rollouts: int, turns: int, tokens: tuple[int, int]) -> dict[str, Any]:
    """Write a step's store and measure it, each in a process of its own."""
    size = ["--rollouts", str(rollouts), "--turns", str(turns), "--tokens", *map(str, tokens)]
    with tempfile.TemporaryDirectory() as folder:
        print(f"{rollouts} rollouts: writing the store", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, *size, "--folder", folder]
        subprocess.run([*command, "--role", "make"], check=True)
        done = subprocess.run(
            [*command, "--role", "measure"], check=True, stdout=subprocess.PIPE, encoding="utf-8"
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found), file=sys.stderr, flush=True)
    return found


def report(args: argparse.Namespace) -> dict[str, Any]:
    """Measure all sizes. The figures are those of scale 1, or of the last scale without it."""
    sizes = {}
    for scale in sorted(args.scales):
        rollouts = max(GROUP, round(args.rollouts * scale / GROUP) * GROUP)
        sizes[scale] = one_size(rollouts, args.turns, tuple(args.tokens))
    main = sizes.get(1.0) or sizes[max(sizes)]
    rest = main["seconds"] - main["seconds_ahead"]
    names = ("seconds", "loop_stall_max_s", "peak_mb", "mb_shipped")
    first, last = sizes[min(sizes)], sizes[max(sizes)]
    grown = {
        "seconds": [one["seconds"] / one["tokens"] for one in (first, last)],
        "memory": [(one["peak_mb"] - one["before_mb"]) / one["tokens"] for one in (first, last)],
    }
    return {
        **{name: main[name] for name in names},
        "seconds_ahead": main["seconds_ahead"],
        "idle_share_at_60s_steps": round(rest / (OTHERWISE + rest), 4),
        "linear": all(after <= FLAT * before for before, after in grown.values()),
        "growth_per_token": {name: round(after / before, 3) for name, (before, after) in grown.items()},
        "sizes": list(sizes.values()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What a large training step costs in Python.")
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--tokens", type=int, nargs=2, default=(8_000, 32_000), metavar=("LEAST", "MOST"))
    parser.add_argument("--scales", type=float, nargs="+", default=(0.25, 1.0))
    parser.add_argument("--role", choices=["make", "measure", "child"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args, _ = parser.parse_known_args()
    if args.role == "make":
        asyncio.run(make(args.folder, args.rollouts, args.turns, tuple(args.tokens)))
    elif args.role == "measure":
        print(json.dumps(asyncio.run(measure(args.folder))))
    elif args.role == "child":
        child()
    else:
        parser.parse_args()  # unknown options are an error
        print(json.dumps(report(args)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
