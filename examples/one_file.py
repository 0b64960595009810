"""Reinforcement learning of an agent that is already written: the whole idea in one file.

    python examples/one_file.py

The agent is that of ``calc_x``, as it is: AutoGen's ``AssistantAgent`` with a calculator. It calls its model
through OpenAI's client and knows nothing of training. Around it stands all that a trainer needs:

1. An **engine** serves the policy, a language model of half a million parameters.
2. A **gateway** stands between agent and engine. It gives each attempt a key of its own, and records each
   model call: the token ids that went in and came out, and the log-probabilities of those that came out.
3. A **group** of rollouts does the same task several times. Their rewards are compared with each other.
4. **Credit** makes training rows of the recorded calls: token ids, which of them were sampled, an advantage.
5. An **update** in plain torch makes the tokens of good rollouts more likely, those of bad ones less.
6. The engine gets the new weights, and the next step begins.

``Trainer`` does the same, with what a long run needs beside it: retries, checkpoints, machines, reports.
A tensor's suffix names its axes: T are the tokens of a row that have one before them, V is the vocabulary.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

import agentlightning as agl
from agentlightning.capture.emit import returned_reward_span
from agentlightning.credit import assign
from agentlightning.gateway import AttemptInfo, Gateway, Upstream
from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore, Store
from agentlightning.types import AttemptStatus, Record, Row, new_id
from agl_local import EngineProcess, Policy, load_policy, state

EXAMPLES = Path(__file__).resolve().parent
sys.path.insert(0, str(EXAMPLES))
from calc_x.agent import solve  # noqa: E402
from calc_x.datasets import load  # noqa: E402

START = EXAMPLES / "calc_x" / "policy"
NAME = {"agent": "calc"}


# --------------------------------------------------------------------------- 2. rollouts, behind the gateway
@dataclass
class Agents:
    """Runs the agent, and returns what was recorded of it."""

    store: Store
    gateway: Gateway
    seeds: random.Random
    free: asyncio.Semaphore

    async def run(self, tasks: Sequence[Any], mode: agl.Mode, group_size: int = 1) -> list[Record]:
        """Run the agent ``group_size`` times on each task, all at a time. In the mode ``train`` tokens are
        drawn, in the mode ``test`` the likeliest is taken.
        """
        groups = [(task, new_id("gr")) for task in tasks]
        rollouts = [self.rollout(task, group, mode) for task, group in groups for _ in range(group_size)]
        rollout_ids = await asyncio.gather(*rollouts)
        return await self.store.records(rollout_ids)

    async def rollout(self, task: Any, group: str, mode: agl.Mode) -> str:
        """Run the agent once, and return the id under which its calls and its reward are stored."""
        seed = self.seeds.randrange(2**31)
        async with self.free:
            queued = await self.store.enqueue_rollout(task, mode, group_id=group)
            lease = await self.store.start_attempt(queued.rollout_id)
            rollout, attempt = lease.rollout.rollout_id, lease.attempt.attempt_id
            info = AttemptInfo(
                rollout_id=rollout, attempt_id=attempt, mode=mode, seed=seed, greedy=mode == "test", tags=NAME
            )
            key = self.gateway.open_attempt(info)
            llm = agl.LLM(endpoint=self.gateway.url, model="policy", api_key=key)
            status, reason, rewards = AttemptStatus.SUCCEEDED, None, []
            try:
                span = returned_reward_span(await solve(task, llm))
                rewards = [replace(span, rollout_id=rollout, attempt_id=attempt)]
            except Exception as error:  # no reward, which is something else than a reward of 0
                status, reason = AttemptStatus.FAILED, repr(error)
            await self.gateway.close_attempt(attempt)  # its key is worth nothing any more
            await self.store.update_attempt(rollout, attempt, status, reason=reason, returned=rewards)
            return rollout


def mean_reward(records: Sequence[Record]) -> float:
    """The mean over the rollouts that have a reward."""
    rewards = [reward.value for record in records for reward in record.rewards]
    return sum(rewards) / len(rewards)


# --------------------------------------------------------------------------------------------- 5. the update
def policy_loss(policy: Policy, row: Row) -> torch.Tensor:
    """The loss of one row: its gradient is the policy gradient (Williams 1992), weighted by how much likelier
    each token is now than when it was sampled.

    A row may hold several calls of the agent. Tokens that the agent wrote itself, prompts and what tools
    answered, are in the row and not in the mask.
    """
    ids = torch.tensor(row.token_ids)
    mask_T = torch.tensor(row.mask[1:], dtype=torch.bool)
    logits_TV = policy.model(ids[None])[0, :-1] / row.temperature
    logprobs_T = logits_TV.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    sampled_T = torch.tensor(row.logprobs[1:])
    advantages_T, weights_T = torch.tensor(row.advantages[1:]), torch.tensor(row.weights[1:])
    ratio_T = torch.exp(logprobs_T - sampled_T)
    return -(ratio_T * advantages_T * weights_T)[mask_T].sum()


def update(policy: Policy, optimizer: torch.optim.Optimizer, rows: Sequence[Row]) -> None:
    """Take one step of the optimizer, on all rows."""
    optimizer.zero_grad()
    for row in rows:
        if any(row.advantages):  # of a group whose rewards are all equal there is nothing to learn
            policy_loss(policy, row).backward()
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    optimizer.step()


# -------------------------------------------------------------------------------------------------- the loop
async def train(
    steps: int, tasks_per_step: int, group_size: int, held_out: int, learning_rate: float, seed: int
) -> dict[str, Any]:
    """Train, and return the mean reward on tasks that were not trained, before and after."""
    began = time.perf_counter()
    policy = load_policy(START)
    optimizer = torch.optim.AdamW(policy.model.parameters(), lr=learning_rate, weight_decay=0.0)
    recipe = agl.GRPO(group_size=group_size)  # how rewards become advantages
    store = SQLiteStore(":memory:")
    gateway = Gateway(store, Keys())
    with EngineProcess(START, name="policy", threads=1, max_len=512) as engine:
        gateway.add_route(Upstream(url=f"{engine.address}/v1", model="policy"))
        await gateway.start()
        agents = Agents(store, gateway, random.Random(seed), asyncio.Semaphore(64))
        test = load("generated:heldout", limit=held_out, seed=seed)
        before = mean_reward(await agents.run(test, "test"))
        print(f"before: {before:.3f} of {held_out} held-out tasks")
        made = exact = failed = 0
        tasks = load("generated:train", limit=steps * tasks_per_step, seed=seed)
        for step in range(steps):
            some = tasks[step * tasks_per_step :][:tasks_per_step]
            records = await agents.run(some, "train", group_size)
            batch = assign(records, recipe, version=step)
            await asyncio.to_thread(update, policy, optimizer, batch.rows)
            with engine.weights.publish(state(policy.model)) as handover:
                engine.update(handover, version=step + 1)
            calls = [call for record in records for call in record.calls]
            made, exact = made + len(calls), exact + sum(call.response_ids is not None for call in calls)
            failed += sum(not record.rewards for record in records)
            print(
                f"step {step + 1:3}: reward {mean_reward(records):.3f}, {len(calls)} calls in "
                f"{len(batch.rows)} rows, {sum(row.trained_tokens for row in batch.rows)} sampled tokens"
            )
        after = mean_reward(await agents.run(test, "test"))
        await gateway.stop()
    await store.close()
    seconds = round(time.perf_counter() - began, 1)
    lines = len(Path(__file__).read_text(encoding="utf-8").splitlines())
    counts = {"calls": made, "calls_exact": exact, "failed": failed}
    return {"lines": lines, "before": before, "after": after, **counts, "seconds": seconds}


def main() -> None:
    """Read the command's options, train, and print the result as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tasks-per-step", type=int, default=8)
    parser.add_argument(
        "--group-size", type=int, default=8, help="rollouts of each task, whose rewards are compared"
    )
    parser.add_argument("--held-out", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=1)
    print(json.dumps(asyncio.run(train(**vars(parser.parse_args())))))


if __name__ == "__main__":
    main()
