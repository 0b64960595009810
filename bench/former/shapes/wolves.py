"""A game of many players on AgentScope 1, in the shape of a program for Agent Lightning 0.1.

The agent's class has 0.1's constructor and method; it reads the triplets of its game from the tracer, gives
each a reward by its player's side, and returns those of the wolves. Its runner takes games from a server of
tasks.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any, Literal

from agentscope.agent import AgentBase, ReActAgent
from agentscope.formatter import OpenAIMultiAgentFormatter
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel
from agentscope.pipeline import MsgHub, fanout_pipeline, sequential_pipeline
from agl_testing import template
from pydantic import BaseModel, Field, create_model

import agentlightning
from agentlightning import LitAgent, NamedResources, Trainer
from agentlightning.tracer.base import BaseTracer
from agentlightning.tracer.triplet import TripletExporter
from agl_v03.triplet import Triplet

logger = agentlightning.configure_logger(name=__name__)
ROLES = ["werewolf"] * 3 + ["seer", "witch", "hunter"] + ["villager"] * 6
ROUNDS = 2


class Say(BaseModel):
    """What a player says to the others."""

    text: str = Field(description="One sentence.")


def vote_for(names: list[str]) -> type[BaseModel]:
    return create_model("Vote", vote=(Literal[tuple(names)], Field(description="Whom you vote out.")))  # type: ignore[call-overload]


class Moderator(AgentBase):
    async def reply(self, content: str) -> Msg:
        return Msg("moderator", content, "assistant")

    async def observe(self, msg: Any) -> None:
        return None

    async def handle_interrupt(self, *args: Any, **kwargs: Any) -> Msg:
        raise NotImplementedError


async def create_player(name: str, role: str, moderator: Moderator, llm: agentlightning.LLM) -> ReActAgent:
    player = ReActAgent(
        name=name,
        sys_prompt="You are a player of a game of wolves.",
        model=OpenAIChatModel(
            model_name=llm.model, client_args={"base_url": llm.endpoint}, api_key="xxx", stream=False
        ),
        formatter=OpenAIMultiAgentFormatter(),
        print_hint_msg=False,
    )
    await player.observe(await moderator(f"[{name} ONLY] you are {name}, your role is {role}."))
    return player


class WolvesAgent(LitAgent):
    def __init__(self, trained_agents: str | None = None) -> None:
        super().__init__(trained_agents=trained_agents)
        self.triplet_exporter = TripletExporter()

    def _with_rewards(self, wolves_win: bool, roles: dict[str, str]) -> list[Triplet]:
        assert isinstance(self.tracer, BaseTracer)
        spans = self.tracer.get_last_trace()
        kept = []
        for triplet in self.triplet_exporter.export(spans):
            prompt = template.decode(triplet.prompt.get("token_ids"))
            response = template.decode(triplet.response.get("token_ids", []))
            name = prompt.split(" ONLY]")[0].rsplit("[", 1)[1]
            if roles[name] != "werewolf":
                continue
            triplet.reward = 15.0 if wolves_win else -10.0
            if len(response) > 2000:
                triplet.reward = triplet.reward - 10.0
            kept.append(triplet)
        return kept

    async def training_rollout_async(self, task: Any, rollout_id: str, resources: NamedResources) -> Any:
        llm: agentlightning.LLM = resources["main_llm"]
        moderator = Moderator()
        order = random.Random(task["game"]).sample(ROLES, len(ROLES))
        roles = {f"P{number:02}": role for number, role in enumerate(order, 1)}
        players = [await create_player(name, role, moderator, llm) for name, role in roles.items()]
        alive = list(players)
        for _ in range(ROUNDS):
            wolves = [one for one in alive if roles[one.name] == "werewolf"]
            others = [one.name for one in alive if roles[one.name] != "werewolf"]
            async with MsgHub(wolves, announcement=await moderator("Wolves, whom do you take?")) as hub:
                hub.set_auto_broadcast(False)
                votes = await fanout_pipeline(wolves, structured_model=vote_for(others), enable_gather=False)
            taken = Counter(vote.metadata["vote"] for vote in votes).most_common(1)[0][0]
            alive = [one for one in alive if one.name != taken]
            async with MsgHub(alive, announcement=await moderator(f"{taken} is gone. Speak.")) as hub:
                await sequential_pipeline(alive[:3])
                hub.set_auto_broadcast(False)
                names = [one.name for one in alive]
                ballots = []
                for one in alive:
                    asked = await moderator("Whom do you vote out?")
                    ballots.append(await one.reply(asked, structured_model=vote_for(names)))
            out = Counter(ballot.metadata["vote"] for ballot in ballots).most_common(1)[0][0]
            alive = [one for one in alive if one.name != out]
            if not any(roles[one.name] == "werewolf" for one in alive):
                return self._with_rewards(False, roles)
        logger.info(json.dumps({"rollout": rollout_id, "alive": [one.name for one in alive]}))
        return self._with_rewards(True, roles)


class WolvesTrainer(Trainer):
    """A trainer of one's own, as forks of 0.1 have."""

    def __init__(self, n_workers: int = 1, **settings: Any) -> None:
        super().__init__(n_workers=n_workers, **settings)


if __name__ == "__main__":
    WolvesTrainer(n_workers=2).fit(WolvesAgent(), "http://localhost:9999/")
