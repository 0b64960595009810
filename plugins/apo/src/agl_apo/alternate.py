"""Weights and prompts in one loop: each agent of a system is trained, tuned, or left as it is.

``Alternate({"solver": "weights", "reporter": "prompt", "judge": "freeze"}, …)`` trains the policy of the
first on steps of the run's recipe. Before every ``every``-th step but the first, and after the last, the
prompts of the second are tuned by the rollouts of the step before: the critic reads those with the lowest
rewards, and the best of the present prompt and its edits is kept. Later steps roll out with it. So both learn
from the same rollouts of one system.

Prompts are compared with the weights of the moment: all candidates of a round are scored anew on the same
training tasks, also the present one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agl_gateway.budget.limits import BudgetSpent

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.rl import RL, RLJob
from agentlightning.credit.checks import check_credit_fields
from agentlightning.types import Batch, Evaluation, UsageError
from agl_apo.candidates import Candidate
from agl_apo.prompt_search import PromptSearch
from agl_apo.scoring import Scored, scored_of
from agl_apo.search import Search
from agl_apo.settings import at_least, read_prompts
from agl_apo.writing import evidence

What = Literal["weights", "prompt", "freeze"]
STATE = "prompts"
"""Key of the present candidate in a checkpoint."""


class Alternate(PromptSearch):
    """Trains, tunes or freezes each agent.

    ``agents``: agent → ``weights``, ``prompt`` or ``freeze``. An agent whose prompt is tuned has its name, or
    ``prompt_of`` names its resource. The run's ``select`` chooses the calls that are trained; it must name
    the agents with ``weights``. ``every``: training steps between two rounds of prompts; ``branch_factor``:
    edits of each prompt in a round. The recipe, the number of steps and the like are those of the run.
    Further settings: :class:`PromptSearch`.
    """

    trains_policy = True
    name = "alternate"

    def __init__(
        self,
        agents: Mapping[str, What],
        *,
        every: int = 4,
        branch_factor: int = 2,
        prompt_of: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        known = ("weights", "prompt", "freeze")
        if wrong := {agent: what for agent, what in agents.items() if what not in known}:
            agent, what = next(iter(wrong.items()))
            raise UsageError(f"agents: {agent} has {what!r}; choose weights, prompt or freeze")
        self.trained = sorted(agent for agent, what in agents.items() if what == "weights")
        self.tuned = [agent for agent, what in agents.items() if what == "prompt"]
        if not self.trained and not self.tuned:
            raise UsageError("agents: all are frozen, so that nothing would be learned")
        if not self.tuned:
            settings.setdefault("critic", "no-critic-is-asked")
        names = {agent: (prompt_of or {}).get(agent, agent) for agent in self.tuned}
        super().__init__(**settings)
        self.prompt_names = list(names.values())
        self.agents = {prompt: agent for agent, prompt in names.items()}
        self.every = at_least("every", every, 1)
        self.branch_factor = at_least("branch_factor", branch_factor, 1)

    def bind(self, trainer: Any) -> Alternate:
        """Note whose runs it makes: the recipe and the schedule are the trainer's."""
        self._trainer = trainer
        return self

    async def run(self, context: Context) -> dict[str, Any]:
        """Train and tune; return both evaluations, the prompts and what was spent."""
        trainer, training = self._trainer, self._trainer.config.training
        self._check(trainer, context)
        search = await self.open(context)
        if missing := sorted({*self.prompt_names} - set(search.first.prompts)):
            raise UsageError(f"agents: there is no prompt {missing[0]!r}; prompt_of says which an agent has")
        job = AlternateJob(context, RL(trainer.recipe, training), self, search)
        await job.adopt(search.first)
        await job.restore_prompts()
        before = await job.measure("before")
        if self.trained:
            assert context.driver is not None
            try:
                await context.driver.run(job)
            finally:
                await job.end()
            await job.tune(job.steps)
        else:
            for number in range(self.every, training.steps + 1, self.every):
                await job.tune(number)
        after = await job.measure("after")
        result = job.result(before, after)
        await search.scorer.seal(self.name, result)
        return result

    def _check(self, trainer: Any, context: Context) -> None:
        """Raise ``UsageError`` if the run would train other calls than those of the agents with weights."""
        if not self.trained:
            return
        check_credit_fields(trainer.recipe, **context.plugins.credit_functions)
        if context.driver is None:
            raise UsageError("agents: weights are trained by a driver: give the run a policy to train")
        if trainer.config.training.async_steps:
            raise UsageError("async_steps: its rollouts would have the prompts of earlier rounds; leave it 0")
        select = trainer.config.agent.select
        names = [select] if isinstance(select, str) else select
        if not isinstance(names, list) or sorted(names) != self.trained:
            raise UsageError(f"select is {select!r}: give {self.trained}, the agents with weights")


class AlternateJob(RLJob):
    """A training run that changes the prompts of its rollouts between steps."""

    def __init__(self, context: Context, rl: RL, algorithm: Alternate, search: Search) -> None:
        self.present: Candidate | None = None
        """The prompts of the rollouts."""
        super().__init__(context, rl)
        self.algorithm, self.search = algorithm, search
        self._last: list[str] = []
        """Rollouts of the last step, which the critic reads."""
        self.rounds: list[dict[str, Any]] = []

    def state(self) -> dict[str, Any]:
        """Return the job's part of a checkpoint, the present prompts in it."""
        assert self.present is not None
        texts = {name: prompt.model_dump() for name, prompt in self.present.prompts.items()}
        return {**super().state(), STATE: {"prompts": texts, "last": self._last, "rounds": self.rounds}}

    async def restore_prompts(self) -> None:
        """Bring the prompts to the run's checkpoint."""
        kept = self.context.progress.get(STATE)
        if kept is None:
            return
        prompts = read_prompts(kept["prompts"])
        self._last, self.rounds = list(kept["last"]), list(kept["rounds"])
        await self.search.book.add(prompts, "resumed")
        await self.adopt(self.search.book.find(prompts))

    async def adopt(self, candidate: Candidate) -> None:
        """Roll out with the prompts of ``candidate`` from now on."""
        self.present = candidate
        self.context.resources.ids[self.context.policy] = candidate.candidate_id

    async def collect(self, step: int) -> Batch:
        """Tune the prompts where a round is due, then collect the step."""
        if step and step % self.algorithm.every == 0 and step > self.first_step:
            await self.tune(step)
        batch = await super().collect(step)
        self._last = [ledger.rollout_id for ledger in batch.ledgers]
        return batch

    async def tune(self, step: int) -> None:
        """One round of prompts before ``step``: critique, edit, score, keep the best."""
        if not self.algorithm.tuned or (self.rounds and self.rounds[-1]["step"] >= step):
            return
        try:
            await self._tune(step)
        except BudgetSpent as error:
            self.search.stopped = f"prompts are left as they are: the budget is spent: {error}"
            self.context.say(self.search.stopped)

    async def _tune(self, step: int) -> None:
        search, algorithm, present = self.search, self.algorithm, self.present
        assert present is not None
        search.scorer.stage = f"step-{step}/"
        own = await self._score(present)
        seen = await self._seen() or own
        made: list[Candidate] = []
        for turn in range(algorithm.branch_factor):
            for name in algorithm.prompt_names:
                key = f"step-{step}/{present.candidate_id}/{name}/{turn}"
                chosen = evidence(seen, algorithm.gradient_batch_size, self.context.seed, key)
                proposal = await algorithm.propose(search, present, name, key, chosen)
                if proposal is not None and (new := await algorithm.add(search, proposal, f"step {step}")):
                    made.append(new)
        scores = {present.candidate_id: _mean(own)}
        for one in made:
            scores[one.candidate_id] = _mean(await self._score(one))
        best = max([present, *made], key=lambda one: scores[one.candidate_id])
        await self.adopt(best)
        search.scores = scores
        self.rounds.append({"step": step, "scores": list(scores.values()), "kept": best.candidate_id})
        self.context.say(
            f"prompts before step {step}: {len(made)} new candidates, best {scores[best.candidate_id]:.3f}, "
            f"before {scores[present.candidate_id]:.3f}"
        )

    async def _score(self, candidate: Candidate) -> list[Scored]:
        return await self.search.scorer.score(candidate, self.algorithm.scoring_tasks(self.search))

    async def _seen(self) -> list[Scored]:
        """Return the rollouts of the last step with their rewards, for the critic."""
        failure = self.context.evaluations.counting.failure
        return [scored_of(one, failure) for one in await self.context.store.records(self._last)]

    def result(self, before: Evaluation | None, after: Evaluation | None) -> dict[str, Any]:
        """Return the run's part of the summary."""
        assert self.present is not None
        return {
            "recipe": self.recipe.model_dump(),
            "steps": self.steps if self.algorithm.trained else 0,
            "prompts": self.present.texts,
            "first_prompts": self.search.first.texts,
            "reward_before": before.reward if before else None,
            "ci_before": list(before.ci) if before and before.ci else None,
            "reward_after": after.reward if after else None,
            "ci_after": list(after.ci) if after and after.ci else None,
            "rounds": self.rounds,
            "stopped": self.search.stopped,
            "failures": dict(self.search.assistants.failures + self.search.rejected),
            "spent": self.search.ledger.summary(),
            "totals": self.totals.values,
        }


def _mean(scored: Sequence[Scored]) -> float:
    return math.fsum(one.reward for one in scored) / len(scored)
