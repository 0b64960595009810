"""What the searches of this package share: settings, the open search, scores, and how a prompt is edited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from agl_gateway.budget.limits import Budget, BudgetSpent
from agl_gateway.budget.prices import read_prices

from agentlightning.algorithms.context import Context
from agentlightning.types import PromptTemplate, UsageError
from agl_apo.assistants import Assistants
from agl_apo.candidates import Candidate, CandidateBook
from agl_apo.ledger import Ledger
from agl_apo.scoring import Scored, Scorer, Task
from agl_apo.search import Search
from agl_apo.settings import (
    Endpoint,
    at_least,
    first_prompts,
    read_budget,
    read_endpoint,
    read_prompts,
    shuffled,
    split,
)
from agl_apo.writing import read_critique, read_edit, to_criticise, to_edit


class Proposal(NamedTuple):
    """An edited prompt that is no candidate yet."""

    parent: Candidate
    name: str
    prompt: PromptTemplate
    critique: str
    edit: str


class PromptSearch:
    """What the searches of this package share: prompts, endpoints, budget and result.

    ``prompts``: the first prompts by resource name; default: those of ``initial_resources``. ``critic``,
    ``editor``: endpoints (``agl.LLM``, a mapping, or the name of one of the run's policies; default of the
    editor: the critic). ``agents``: prompt → agent whose calls the critic reads (default: the agent of the
    prompt's own name, else all calls). ``held_out``: share of the training tasks that is held out where there
    are no held-out tasks. ``val_batch_size``: training tasks that score a candidate (``None``: all).
    ``budget``: ``{calls, tokens, money}``; ``prices``: model → ``{prompt, completion}`` for a million tokens.
    ``greedy``: whether the agent's calls of the run's policy are greedy. ``concurrency``: requests of critic
    and editor at a time.
    """

    trains_policy = needs_policy = False
    name = "prompts"

    def __init__(
        self,
        *,
        critic: Any = None,
        editor: Any = None,
        prompts: Mapping[str, Any] | None = None,
        agents: Mapping[str, str] | None = None,
        val_batch_size: int | None = 16,
        gradient_batch_size: int = 4,
        held_out: float = 0.5,
        budget: Budget | Mapping[str, Any] | None = None,
        prices: Mapping[str, Any] | None = None,
        greedy: bool = True,
        concurrency: int = 4,
        tries: int = 3,
        retry_wait: float = 0.5,
    ) -> None:
        self.critic: Endpoint | None = read_endpoint(critic, "critic")
        self.editor: Endpoint | None = read_endpoint(editor, "editor") or self.critic
        if self.critic is None:
            raise UsageError(f"{self.name}: give critic, the endpoint of the model that improves the prompts")
        self.prompts = read_prompts(prompts)
        self.agents = dict(agents or {})
        self.val_batch_size = (
            None if val_batch_size is None else at_least("val_batch_size", val_batch_size, 1)
        )
        self.gradient_batch_size = at_least("gradient_batch_size", gradient_batch_size, 1)
        if not 0 < held_out < 1:
            raise UsageError(f"held_out: give a share between 0 and 1, not {held_out!r}")
        self.held_out, self.greedy = held_out, greedy
        self.budget, self.prices = read_budget(budget), read_prices(prices)
        self.concurrency = at_least("concurrency", concurrency, 1)
        self.tries, self.retry_wait = at_least("tries", tries, 1), retry_wait
        self.sampling: dict[str, Any] = {}
        """Sampling of critic and editor."""
        self._best: dict[str, PromptTemplate] | None = None

    def get_best_prompt(self, name: str | None = None) -> PromptTemplate:
        """Return the winner's prompt, by name where it has several. Raise ``UsageError`` before a search."""
        if self._best is None:
            raise UsageError(f"{self.name}: there is no best prompt before Trainer.fit")
        if name is None and len(self._best) > 1:
            raise UsageError(f"{self.name}: give the name of a prompt: {', '.join(self._best)}")
        return self._best[name or next(iter(self._best))]

    async def run(self, context: Context) -> dict[str, Any]:
        """Search, and return the result for the run's summary."""
        search = await self.open(context)
        try:
            await search.measure_first()
            await self.search(search)
        except BudgetSpent as error:
            search.stopped = f"the budget is spent: {error}"
            context.say(f"prompt search: {search.stopped}; what was found is kept")
        await search.measure_winner()
        self._best = dict(search.winner.prompts)
        result = search.result(self.name)
        search.write(result)
        await search.scorer.seal(self.name, result)
        return result

    async def search(self, search: Search) -> None:
        """Make and score candidates until the search is done."""
        raise NotImplementedError

    async def open(self, context: Context) -> Search:
        """Return an open search with its first candidate."""
        ledger = Ledger(self.budget, self.prices)
        book, found = CandidateBook(context), split(context, self.held_out)
        assert self.critic is not None and self.editor is not None
        endpoints = {"critic": self.critic, "editor": self.editor}
        assistants = Assistants(context, ledger, endpoints, tries=self.tries, wait=self.retry_wait)
        scorer = Scorer(context, ledger, greedy=self.greedy)
        self._check_prices(ledger)
        prompts = await first_prompts(context, self.prompts)
        if unknown := sorted(set(self.agents) - set(prompts)):
            raise UsageError(f"agents: {unknown[0]!r} is no prompt; the prompts are {', '.join(prompts)}")
        first = await book.add(prompts, "first")
        assert first is not None
        return Search(context, ledger, scorer, assistants, found, first, book)

    def _check_prices(self, ledger: Ledger) -> None:
        """A budget in money needs the prices of critic and editor."""
        if ledger.budget.money is None:
            return
        for model in ledger.models.values():
            if model not in self.prices:
                raise UsageError(f"budget.money: prices has no {model!r}; without it the budget cannot hold")

    def scoring_tasks(self, search: Search) -> list[Task]:
        """Return the training tasks that score candidates: the same for the whole search."""
        tasks = search.split.train
        size = len(tasks) if self.val_batch_size is None else min(self.val_batch_size, len(tasks))
        return shuffled(tasks, search.context.seed, "scoring")[:size]

    async def score(self, search: Search, candidate: Candidate) -> list[Scored]:
        """Score a candidate and return its rollouts."""
        scored = await search.scorer.score(candidate, self.scoring_tasks(search))
        search.scores[candidate.candidate_id] = math.fsum(one.reward for one in scored) / len(scored)
        return scored

    async def propose(
        self, search: Search, parent: Candidate, name: str, key: str, scored: list[Scored]
    ) -> Proposal | None:
        """Have one prompt of ``parent`` criticised and edited; ``None`` without a usable answer."""
        prompt, ask = parent.prompts[name], search.assistants.ask
        request = to_criticise(name, prompt, scored, self.agents.get(name, name))
        critique = await ask("critic", key, request, read_critique, **self.sampling)
        if critique is None:
            return None
        asked = to_edit(name, prompt, critique.value)
        edit = await ask("editor", key, asked, lambda text: read_edit(prompt, text), **self.sampling)
        if edit is None:
            return None
        return Proposal(parent, name, edit.value, critique.rollout_id, edit.rollout_id)

    async def add(self, search: Search, proposal: Proposal, step: str) -> Candidate | None:
        """Store a proposal as a candidate; ``None`` if the search has one with these texts."""
        made = await search.book.add(
            {**proposal.parent.prompts, proposal.name: proposal.prompt},
            step,
            parents=[proposal.parent.candidate_id],
            edited=[proposal.name],
            critique=proposal.critique,
            edit=proposal.edit,
        )
        if made is None:
            search.rejected["duplicate"] += 1
        return made
