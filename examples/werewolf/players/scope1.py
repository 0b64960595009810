"""AgentScope 1.0 at the table: the players of :mod:`werewolf.players.scope2` on its ``ReActAgent``.

1.0 writes the arguments of a tool call anew into the next prompt, so that prompts do not extend one another:
each call trains as a row of its own. Its finish tool has a field ``response`` beside those of the decision.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg
from agentscope.model import ChatResponse, OpenAIChatModel

import agentlightning as agl
from werewolf.board import SYSTEM, answers, board, check_preset
from werewolf.engine import Answer, Ask, Event, Happening, Rules, Say, Statement
from werewolf.players.asking import Account, AskingPlayer, Endpoint
from werewolf.players.base import legal_default
from werewolf.players.decisions import Form, decision, question, read
from werewolf.wording import Wording

TRIES = 3
"""Calls that a decision may take."""


class RememberingModel(OpenAIChatModel):
    """Knows the ids of the answers it has given, so that rewards can name calls."""

    def __init__(self, llm: Endpoint, http: Any) -> None:
        kwargs = {"base_url": llm.endpoint, **({} if http is None else {"http_client": http})}
        super().__init__(llm.model, api_key=llm.api_key or "none", stream=False, client_kwargs=kwargs)
        self.answered: list[str] = []

    async def __call__(self, *args: Any, **kwargs: Any) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        response = await super().__call__(*args, **kwargs)
        if isinstance(response, ChatResponse):
            self.answered.append(response.id)
        return response

    def taken(self) -> tuple[str, ...]:
        """The ids since the last time."""
        ids, self.answered = tuple(self.answered), []
        return ids


def _agent(name: str, system: str, model: OpenAIChatModel) -> ReActAgent:
    agent = ReActAgent(name, system, model, OpenAIChatFormatter(), memory=InMemoryMemory(), max_iters=TRIES)
    agent.set_console_output_enabled(False)
    return agent


class BoardPlayer(AskingPlayer):
    """One guided call a decision."""

    def __init__(
        self,
        seat: int,
        rules: Rules,
        llm: Endpoint,
        http: Any,
        account: Account,
        words: Wording,
        chance: random.Random,
    ) -> None:
        check_preset(rules)
        super().__init__(seat, rules.seats, account)
        self.words = words
        self.chance = chance
        self.model = RememberingModel(llm, http)
        self.agent = _agent(words.seat(seat), SYSTEM, self.model)

    async def answer(self, ask: Ask) -> Answer:
        legal = answers(ask)
        await self.agent.memory.clear()  # the board holds all there is to know
        self.model.generate_kwargs = {"extra_body": {"guided_choice": list(legal)}}
        with agl.tagged(**self.tags(ask)):
            reply = await self.agent(Msg("moderator", board(self.knows, ask), "user"))
        choice = legal.get((reply.get_text_content() or "").strip())
        self.decided(ask, self.model.taken(), choice)
        if choice is None:  # an engine that does not know guided choice
            return legal_default(ask, self.chance)
        return Say(self.words.statement(choice), choice) if isinstance(choice, Statement) else choice


class SpeakingPlayer(AskingPlayer):
    """A real model's player: one agent with a memory that only grows, and 1.0's own finish tool."""

    def __init__(
        self,
        seat: int,
        rules: Rules,
        llm: Endpoint,
        http: Any,
        account: Account,
        words: Wording,
        chance: random.Random,
        form: Form = "question",
    ) -> None:
        super().__init__(seat, rules.seats, account)
        self.words = words
        self.chance = chance
        self.form: Form = form
        self.heard: list[str] = []
        self.model = RememberingModel(llm, http)
        self.agent = _agent(words.seat(seat), words.system(rules), self.model)

    def observe(self, event: Event) -> None:
        super().observe(event)
        if event.what in (Happening.SAID, Happening.WOLF_TALK) and event.seat == self.seat:
            return  # it is in the memory already, as its own decision
        if line := self.words.event(event):
            self.heard.append(line)

    async def answer(self, ask: Ask) -> Answer:
        lines, self.heard = self.heard, []
        if not self.turn:
            mates = [seat for seat in self.knows.team if seat != self.seat]
            lines.insert(0, self.words.card(self.seat, self.knows.role, mates, self.knows.king))
        message = Msg("moderator", "\n".join([*lines, question(ask, self.words, self.form)]), "user")
        with agl.tagged(**self.tags(ask)):
            reply = await self.agent(message, structured_model=decision(ask, self.words, self.form))
        answer = read(ask, self.words, dict(reply.metadata)) if reply.metadata else None
        self.decided(ask, self.model.taken(), answer)
        return legal_default(ask, self.chance) if answer is None else answer
