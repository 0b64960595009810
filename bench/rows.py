"""What merging saves: rows and tokens of the same calls with one row a call, linear merging, and the forest.

    python bench/rows.py [--games 4] [--words 120]

Two agents are recorded through gateway, store and runner, each against a scripted model server whose tokens
are known: `zh12` werewolf games in which twelve AgentScope players talk at length and take turns, and an
agent that uses a tool for twenty turns. *Linear* merging is what a recorder can do that knows no speakers: a
call joins the row before it if it extends the very call before it. The forest joins it to the longest earlier
call that it extends. Rows of one policy-gradient step are then compared in float64: one row a call and the
forest must give the same gradient. The last line is one JSON object; exit status 1 if a goal is missed or the
gradients differ by more than 1e-9.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import torch
from agl_testing.replies import tool_call
from agl_testing.scripted import ScriptedModelServer
from openai import AsyncOpenAI
from torch.nn.functional import rms_norm

import agentlightning as agl
from agentlightning.algorithms.rollouts.batching import group_rollouts
from agentlightning.algorithms.rollouts.enqueue import enqueue
from agentlightning.cli.options import read
from agentlightning.credit.assign import assign
from agentlightning.gateway import Upstream
from agentlightning.recipes import GRPO
from agentlightning.train.configured import configure
from agentlightning.types import LLM, Batch, Call, Record, RolloutStatus, Row
from agl_local.network.config import ModelConfig
from agl_local.network.model import RMSNorm
from agl_local.policy.folder import init_model
from werewolf.agent import play_game
from werewolf.chatter import chatter

CONFIG = Path(__file__).resolve().parents[1] / "examples" / "werewolf" / "cpu.yaml"
TURNS = 20
GOALS = {"zh12": 2.5, "tool_agent": 5.0}
REWARDS = {"wolves_win": 1.0, "wolves_lose": -1.0, "town_win": 0.5, "town_lose": -0.5}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


# ------------------------------------------------------------------------------------------------ the agents
async def look_around(task: Mapping[str, Any], llm: LLM) -> float:
    """Twenty turns with one tool, in one growing conversation."""
    messages: list[Any] = [{"role": "user", "content": f"Find number {task['number']}."}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client, named("looker"):
        for turn in range(TURNS):
            answer = await client.chat.completions.create(model=llm.model, messages=messages, tools=[TOOL])  # type: ignore[list-item]
            said = answer.choices[0].message
            messages.append(said.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
            assert said.tool_calls
            found = f"Room {turn}: " + "nothing here. " * 10
            messages.append({"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": found})
    return float(task["number"] % 2)


@asynccontextmanager
async def named(agent: str) -> AsyncIterator[None]:
    """Calls within are the agent's."""
    with agl.tagged(agent=agent):
        yield


def looks(body: Mapping[str, Any]) -> dict[str, Any]:
    """The scripted model of the tool agent."""
    n = len(body["messages"])
    return tool_call("look", {}, f"call_{n}", content="I look around once more. " * 8)


# ----------------------------------------------------------------------------------------------- recording
async def record(agent: Any, script: Any, tasks: Sequence[Any], samples: int) -> list[Record]:
    """Roll ``tasks`` out as in a training step, with the scripted model behind the policy's name."""
    with tempfile.TemporaryDirectory() as folder:
        sets = ["training.steps=0", f"output={folder}", "trackers=[]", "backend.options.engine=thread"]
        sets += ["agent.timeout_seconds=null", "agent.unresponsive_seconds=null"]
        trainer, _, _, _ = configure(read(CONFIG, [*sets, "environment.val=null", "agent.select=null"]))
        async with (
            ScriptedModelServer(script, ids="always") as server,
            trainer.session(agent, tasks, ()) as context,
        ):
            context.gateway.add_route(
                Upstream(policy=context.policy, url=server.url, model=server.model, trainable=True)
            )
            rollouts = group_rollouts(
                tasks, samples, run_id=context.run_id, name="rows", seed=1, mode="train",
                resources_id=context.resources[context.policy], config=context.config,
            )  # fmt: skip
            ids = await enqueue(context.store, rollouts)
            await context.store.wait_for_rollouts(ids)
            records = await context.store.records(ids)
    if failed := [r.rollout.reason for r in records if r.rollout.status != RolloutStatus.SUCCEEDED]:
        raise RuntimeError(f"{len(failed)} of {len(records)} rollouts failed: {failed[0]}")
    return records


# ------------------------------------------------------------------------------------------------ counting
def linear(records: Sequence[Record]) -> tuple[int, int]:
    """Rows and tokens if a call may only extend the call before it."""
    rows = tokens = 0
    for record_ in records:
        before: list[int] | None = None
        for call in sorted(record_.calls, key=lambda c: c.sequence):
            whole = whole_of(call)
            extends = before is not None and (call.prompt_ids or [])[: len(before)] == before
            rows += not extends
            tokens += len(whole) - (len(before) if extends and before is not None else 0)
            before = whole
    return rows, tokens


def whole_of(call: Call) -> list[int]:
    """Prompt and response."""
    return [*(call.prompt_ids or ()), *(call.response_ids or ())]


def batch_of(records: Sequence[Record], merge: bool, **recipe: Any) -> Batch:
    """The rows of the step."""
    return assign(records, GRPO(group_size=2, merge=merge, loss_aggregation="rollout", **recipe))


def figures(records: Sequence[Record]) -> dict[str, Any]:
    """Rows and tokens three ways, and how many times fewer than with one row a call."""
    single, forest = batch_of(records, False), batch_of(records, True)
    counts = {
        "per_call": (len(single.rows), sum(len(row.token_ids) for row in single.rows)),
        "linear": linear(records),
        "forest": (len(forest.rows), sum(len(row.token_ids) for row in forest.rows)),
    }
    trained = [sum(row.trained_tokens for row in batch.rows) for batch in (single, forest)]
    assert trained[0] == trained[1], f"the same response tokens are trained: {trained}"
    base_rows, base_tokens = counts["per_call"]
    return {
        "rollouts": len(records),
        "calls": sum(len(r.calls) for r in records),
        "response_tokens": trained[0],
        **{
            name: {
                "rows": rows,
                "tokens": tokens,
                "rows_fewer": round(base_rows / rows, 2),
                "tokens_fewer": round(base_tokens / tokens, 2),
            }
            for name, (rows, tokens) in counts.items()
        },
    }


# ------------------------------------------------------------------------------------------------ gradients
def gradient(rows: Sequence[Row]) -> torch.Tensor:
    """Of the step's policy-gradient loss at ratio 1, in float64, on a small network with random weights."""
    config = ModelConfig(
        hidden_size=32, intermediate_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16,
        vocab_size=512, max_positions=1 << 16, eos_token_ids=(),
    )  # fmt: skip
    model = in_float64(init_model(config, seed=1))
    for row in rows:
        ids = torch.tensor(row.token_ids)
        places = torch.tensor([t for t, trained in enumerate(row.mask) if trained])
        hidden = model.hidden(ids[None, :-1])[0][places - 1]
        logprobs = torch.log_softmax(model.logits(hidden).double(), -1).gather(1, ids[places][:, None])[:, 0]
        worth = torch.tensor(row.weights).double()[places] * torch.tensor(row.advantages).double()[places]
        (-(worth * logprobs).sum()).backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def in_float64(model: torch.nn.Module) -> Any:
    """Throughout: the norms of a network in float64 compute in float32 otherwise."""
    for norm in (m for m in model.modules() if isinstance(m, RMSNorm)):
        norm.forward = lambda x, n=norm: n.weight * rms_norm(x, (x.shape[-1],), None, n.eps)  # type: ignore[method-assign, misc]
    return model.double()


def difference(records: Sequence[Record]) -> float:
    """The relative difference of the gradients with one row a call and with the forest; every call has a
    reward of its own, and no baseline takes it away.
    """
    own = {"credit": "per_call", "baseline": "none", "scale": "none"}
    single, forest = (gradient(batch_of(records, merge, **own).rows) for merge in (False, True))
    if not single.norm() > 0:
        raise RuntimeError("the gradient is zero: nothing was compared")
    return float((single - forest).norm() / single.norm())


async def measure(games: int, words: int) -> dict[str, Any]:
    """Both agents; the gradient on short ones of the same kind, which a CPU can do in float64."""
    everyone = {"wolves": "model", "town": "model"}
    chance = random.Random(1)

    def game(preset: str, deal: int) -> dict[str, Any]:
        return {
            "id": f"{preset}-{deal}",
            "deal": deal,
            "preset": preset,
            "sides": everyone,
            "rewards": REWARDS,
        }

    zh12 = await record(
        play_game, chatter(words), [game("zh12", chance.randrange(1000)) for _ in range(games)], 2
    )
    tool = await record(look_around, looks, [{"number": n} for n in range(4)], 2)
    short = await record(play_game, chatter(1), [game("mini7", 1)], 2)
    found = {"zh12": figures(zh12), "tool_agent": figures(tool)}
    return {
        **found,
        "words_a_speech": words,
        "gradient_difference": difference(short),
        "gradient_rows": {
            "per_call": len(batch_of(short, False).rows),
            "forest": len(batch_of(short, True).rows),
        },
        "goals": GOALS,
    }


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description="Rows and tokens with and without merging.")
    parser.add_argument("--games", type=int, default=4, help="deals, each played twice")
    parser.add_argument("--words", type=int, default=120, help="of a speech, and of the reasoning before it")
    given = parser.parse_args()
    result = asyncio.run(measure(given.games, given.words))
    for name in GOALS:
        for way in ("per_call", "linear", "forest"):
            one = result[name][way]
            fewer = f"{one['tokens_fewer']:5} × fewer"
            print(f"{name:10} {way:9} {one['rows']:6} rows  {one['tokens']:9} tokens  {fewer}")
    print(f"gradients differ by {result['gradient_difference']:.1e}")
    print(json.dumps(result))
    reached = all(result[name]["forest"]["tokens_fewer"] >= goal for name, goal in GOALS.items())
    return 0 if reached and result["gradient_difference"] < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
