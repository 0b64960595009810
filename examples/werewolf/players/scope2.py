"""AgentScope 2 at the table.

:class:`BoardPlayer` is the small policy's: each decision is one call that reads a board of the game and names
the legal answers (guided choice); what it says by day is a statement in the moderator's words.
:class:`SpeakingPlayer` is a real model's.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from typing import Any

from agentscope.agent import Agent, InjectionConfig, ReActConfig
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import ChatResponse, OpenAIChatModel

import agentlightning as agl
from werewolf.board import SYSTEM, answers, board, check_preset
from werewolf.engine import Answer, Ask, Event, Happening, Rules, Say, Statement
from werewolf.players.asking import Account, AskingPlayer, Endpoint
from werewolf.players.base import legal_default
from werewolf.players.decisions import Form, decision, question, read
from werewolf.wording import Wording

QUIET = InjectionConfig(inject_runtime_state=False)
"""No clock in the prompts."""
TRIES = 3
"""Calls that a decision may take; the last one is forced to call the tool."""


class RememberingModel(OpenAIChatModel):
    """Knows the ids of the answers it has given, so that rewards can name calls."""

    def __init__(self, llm: Endpoint, http: Any, context_size: int = 128_000) -> None:
        super().__init__(
            OpenAICredential(api_key=llm.api_key or "none", base_url=llm.endpoint),
            llm.model,
            stream=False,
            max_retries=0,
            context_size=context_size,
            client_kwargs={"http_client": http} if http is not None else None,
        )
        self.answered: list[str] = []

    async def _call_api(self, *args: Any, **kwargs: Any) -> ChatResponse | AsyncGenerator[ChatResponse, None]:
        response = await super()._call_api(*args, **kwargs)
        if isinstance(response, ChatResponse):
            self.answered.append(response.id)
        return response

    def taken(self) -> tuple[str, ...]:
        """The ids since the last time."""
        ids, self.answered = tuple(self.answered), []
        return ids


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
        self.agent = Agent(words.seat(seat), SYSTEM, self.model, injection_config=QUIET)

    async def answer(self, ask: Ask) -> Answer:
        legal = answers(ask)
        self.agent.state.context.clear()  # the board holds all there is to know
        self.model.extra_body = {"guided_choice": list(legal)}
        with agl.tagged(**self.tags(ask)):
            reply = await self.agent.reply(UserMsg("moderator", board(self.knows, ask)))
        choice = legal.get((reply.get_text_content() or "").strip())
        self.decided(ask, self.model.taken(), choice)
        if choice is None:  # an engine that does not know guided choice
            return legal_default(ask, self.chance)
        return Say(self.words.statement(choice), choice) if isinstance(choice, Statement) else choice


class SpeakingPlayer(AskingPlayer):
    """A real model's player: one AgentScope agent with a memory that only grows.

    What was heard since its last decision, and the question, come as one message; the agent ends its reply
    with the finish tool. Its reasoning stays in its own memory, only the speech is told. After ``TRIES``
    invalid decisions a legal default stands in, and the account says so.
    """

    def __init__(
        self, seat: int, rules: Rules, llm: Endpoint, http: Any, account: Account, words: Wording,
        chance: random.Random, form: Form = "question",
    ) -> None:  # fmt: skip
        super().__init__(seat, rules.seats, account)
        self.words = words
        self.chance = chance
        self.form: Form = form
        self.heard: list[str] = []
        self.model = RememberingModel(llm, http)
        self.agent = Agent(
            words.seat(seat),
            words.system(rules),
            self.model,
            react_config=ReActConfig(max_iters=TRIES - 1, structured_output_grace_iters=1),
            injection_config=QUIET,
        )

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
        message = UserMsg("moderator", "\n".join([*lines, question(ask, self.words, self.form)]))
        with agl.tagged(**self.tags(ask)):
            reply = await self.agent.reply(message, structured_schema=decision(ask, self.words, self.form))
        given = reply.structured_output
        answer = None if given is None else read(ask, self.words, given)
        self.decided(ask, self.model.taken(), answer)
        return legal_default(ask, self.chance) if answer is None else answer
