"""APO: textual gradients with beam search (Pryzant et al. 2023, arXiv 2305.03495).

In each round every prompt of the beam is criticised ``branch_factor`` times, by rollouts that it led to, and
edited by each critique; the ``beam_width`` best of old and new prompts go on. All candidates are scored on
the same training tasks, once. The paper chooses among many candidates by a bandit, which spends fewer
rollouts and gives scores of unequal precision; here each candidate has one score, and any two can be
compared.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

from agl_apo.candidates import Candidate
from agl_apo.prompt_search import PromptSearch, Proposal
from agl_apo.search import Search
from agl_apo.settings import at_least, of_client
from agl_apo.writing import evidence

T = TypeVar("T")


class APO(PromptSearch, Generic[T]):
    """Textual gradients with beam search. ``T``: the type of a task, for type checkers alone.

    ``beam_width``: prompts that go on to the next round; ``branch_factor``: critiques, and so edits, of each;
    ``beam_rounds``: rounds; ``diversity_temperature``: of critic and editor. ``gradient_batch_size``:
    rollouts that a critique reads, those with the lowest rewards. ``target``: end once a candidate's training
    score reaches it. With several prompts, the branches edit them in turn. Further settings:
    :class:`PromptSearch`.

    Names of v0.3: the OpenAI client as first argument, ``gradient_model``, ``apply_edit_model``,
    ``rollout_batch_timeout`` (kept: the run's ``agent.timeout_seconds`` limits rollouts) and
    ``run_initial_validation`` (the first prompts are always evaluated).
    """

    name = "apo"

    def __init__(
        self,
        client: Any = None,
        *,
        beam_width: int = 4,
        branch_factor: int = 4,
        beam_rounds: int = 3,
        diversity_temperature: float = 1.0,
        target: float | None = None,
        gradient_model: str = "gpt-5-mini",
        apply_edit_model: str = "gpt-4.1-mini",
        rollout_batch_timeout: float | None = None,
        run_initial_validation: bool = True,
        **settings: Any,
    ) -> None:
        if client is not None:
            settings.setdefault("critic", of_client(client, gradient_model, "critic"))
            settings.setdefault("editor", of_client(client, apply_edit_model, "editor"))
        super().__init__(**settings)
        self.beam_width = at_least("beam_width", beam_width, 1)
        self.branch_factor = at_least("branch_factor", branch_factor, 1)
        self.beam_rounds = at_least("beam_rounds", beam_rounds, 0)
        self.sampling["temperature"] = diversity_temperature
        self.target = target

    async def search(self, search: Search) -> None:
        """Score the first prompts, then make ``beam_rounds`` rounds."""
        await self.score(search, search.first)
        beam = [search.first]
        for number in range(1, self.beam_rounds + 1):
            if self._reached(search):
                search.stopped = f"a candidate reached the target {self.target:g} before round {number}"
                return
            new = await self._expand(search, beam, number)
            for candidate in new:
                await self.score(search, candidate)
            beam = search.ranked([*beam, *new])[: self.beam_width]
            best = search.scores[beam[0].candidate_id]
            search.context.say(
                f"prompt search, round {number} of {self.beam_rounds}: {len(new)} new candidates, best "
                f"{best:.3f} on {len(self.scoring_tasks(search))} training tasks, "
                f"{search.ledger.total.calls} calls"
            )

    def _reached(self, search: Search) -> bool:
        return self.target is not None and search.scores[search.winner.candidate_id] >= self.target

    async def _expand(self, search: Search, beam: list[Candidate], number: int) -> list[Candidate]:
        """Return the new candidates of a round, in the order of beam and branch."""
        step, turns = f"round {number}", range(self.branch_factor)
        wanted = [(parent, turn) for parent in beam for turn in turns]
        if search.ledger.budget.limited:  # one after the other: what is made before the limit is kept
            made = []
            for parent, turn in wanted:
                proposal = await self._branch(search, parent, number, turn)
                made += [await self.add(search, proposal, step)] if proposal else []
            return [one for one in made if one is not None]
        places = asyncio.Semaphore(self.concurrency)

        async def in_turn(parent: Candidate, turn: int) -> Proposal | None:
            async with places:
                return await self._branch(search, parent, number, turn)

        proposals = await asyncio.gather(*(in_turn(*each) for each in wanted))
        added = [await self.add(search, one, step) for one in proposals if one is not None]
        return [one for one in added if one is not None]

    async def _branch(self, search: Search, parent: Candidate, number: int, turn: int) -> Proposal | None:
        names = list(search.first.prompts)
        name = names[(number - 1 + turn) % len(names)]
        key = f"round-{number}/{parent.candidate_id}/{turn}"
        scored = await self.score(search, parent)
        chosen = evidence(scored, self.gradient_batch_size, search.context.seed, key)
        return await self.propose(search, parent, name, key, chosen)
