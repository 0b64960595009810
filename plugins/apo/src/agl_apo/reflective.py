"""Reflective search through the library gepa (Agrawal et al. 2025, arXiv 2507.19457).

gepa chooses parents from the Pareto front of the training tasks, reflects on a few rollouts of one, and keeps
a new prompt if it is better on them. Here its evaluations are rollouts of the store, and its reflections are
requests to the critic.

gepa is a function of its seed and of what it is told. So a search that was killed is started anew, and finds
each evaluation and reflection that its earlier life made in the store, in the same order; gepa's own
checkpoints are not used.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from agl_gateway.budget.limits import BudgetSpent

from agentlightning.types import PromptTemplate, UsageError
from agl_apo.prompt_search import PromptSearch
from agl_apo.scoring import Scored, Task
from agl_apo.search import Search
from agl_apo.settings import at_least
from agl_apo.templates import BadTemplate, edited
from agl_apo.writing import in_words, read_critique

T = TypeVar("T")
KEEP = (
    "Keep every placeholder in curly braces exactly as it is written, use no other placeholder, and add no "
    "other curly braces."
)


class GEPA(PromptSearch):
    """Reflective search. The critic writes the new prompts itself; there is no editor.

    ``max_metric_calls``: rollouts in all that gepa may ask for. ``gradient_batch_size``: rollouts that a
    reflection reads. ``merge``: whether prompts of several components are also crossed over. Further
    settings: :class:`PromptSearch`; ``val_batch_size`` tasks of the training set are gepa's validation set.
    """

    name = "gepa"

    def __init__(
        self, *, max_metric_calls: int = 200, merge: bool = False, temperature: float = 1.0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.max_metric_calls = at_least("max_metric_calls", max_metric_calls, 1)
        self.merge = merge
        self.sampling["temperature"] = temperature

    async def search(self, search: Search) -> None:
        """Run gepa in a thread of its own; its evaluations and reflections run on this event loop."""
        try:
            from gepa.api import optimize
        except ImportError:
            raise UsageError(
                'gepa is not installed: pip install -c constraints.txt ./core "./plugins/apo[gepa]"'
            ) from None
        await self.score(search, search.first)
        bridge = Bridge(self, search, asyncio.get_running_loop())
        train = shuffled_places(search)
        work = asyncio.to_thread(
            optimize,
            seed_candidate=search.first.texts,
            trainset=train,
            valset=[_place(task) for task in self.scoring_tasks(search)],
            adapter=bridge,
            reflection_lm=bridge.reflect,
            reflection_minibatch_size=min(self.gradient_batch_size, len(train)),
            max_metric_calls=self.max_metric_calls,
            use_merge=self.merge,
            stop_callbacks=bridge.stopped,
            skip_perfect_score=False,
            raise_on_exception=True,
            seed=search.context.seed % 2**32,
            logger=_Quiet(),
            display_progress_bar=False,
        )
        try:
            await work
        finally:
            bridge.close()
        search.rejected.update(bridge.rejected)
        if bridge.spent is not None:
            raise bridge.spent


def shuffled_places(search: Search) -> list[tuple[str, int]]:
    """Return the training tasks by their places."""
    return [_place(task) for task in search.split.train]


def _place(task: Task) -> tuple[str, int]:
    return task.split, task.index


class _Quiet:
    """gepa's log is not printed: the run has its own."""

    def log(self, message: str) -> None:
        """Drop a line."""


class Bridge:
    """A ``GEPAAdapter`` whose evaluations are rollouts. Its methods are called in gepa's thread."""

    propose_new_texts = None

    def __init__(self, algorithm: GEPA, search: Search, loop: asyncio.AbstractEventLoop) -> None:
        self._algorithm, self._search, self._loop = algorithm, search, loop
        self._tasks = {_place(task): task for task in search.split.train}
        self._origin: dict[str, Any] = {}
        """Parents and reflection of the candidate that gepa will evaluate next."""
        self._asked: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        """Texts that gepa proposed and that cannot be used."""
        self.spent: BudgetSpent | None = None
        self._closed = False
        self._waiting: Future[Any] | None = None

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._waiting = future
        if self._closed:
            future.cancel()
        return future.result()

    def close(self) -> None:
        """End gepa's thread: what it waits for is cancelled."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()

    def stopped(self, state: Any) -> bool:
        """Whether gepa must end: the budget is spent, or the run is over."""
        return self.spent is not None or self._closed

    # ------------------------------------------------------------------------------- GEPAAdapter's methods
    def evaluate(
        self, batch: list[tuple[str, int]], candidate: dict[str, str], capture_traces: bool = False
    ) -> Any:
        """Run the tasks with the prompts; texts that cannot be used score 0 without a rollout."""
        from gepa.core.adapter import EvaluationBatch

        try:
            scored = self._on_loop(self._evaluate(batch, candidate))
        except BadTemplate as error:
            self.rejected[f"reflection: {error.kind}"] += 1
            feedback = [(None, str(error))] * len(batch)
            return EvaluationBatch(feedback, [0.0] * len(batch), feedback if capture_traces else None)
        except BudgetSpent as error:
            self.spent = error
            feedback = [(None, "the budget is spent")] * len(batch)
            return EvaluationBatch(feedback, [0.0] * len(batch), feedback if capture_traces else None)
        seen: list[Any] = [(one, None) for one in scored]
        rewards = [one.reward for one in scored]
        return EvaluationBatch(seen, rewards, seen if capture_traces else None)

    async def _evaluate(self, batch: Sequence[tuple[str, int]], texts: Mapping[str, str]) -> list[Scored]:
        search, first = self._search, self._search.first.prompts
        prompts = {name: self._template(first[name], text) for name, text in texts.items()}
        step = f"reflection {self._asked.total()}" if self._origin else "merge"
        if await search.book.add(prompts, step, **self._origin):
            self._origin = {}
        candidate = search.book.find(prompts)
        scored = await search.scorer.score(candidate, [self._tasks[place] for place in batch])
        wanted = {_place(task) for task in self._algorithm.scoring_tasks(search)}
        if wanted <= {tuple(place) for place in batch}:
            await self._algorithm.score(search, candidate)
        return scored

    @staticmethod
    def _template(first: PromptTemplate, text: str) -> PromptTemplate:
        return first if text.strip() == first.template.strip() else edited(first, text)

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> dict[str, list[dict[str, Any]]]:
        """Return for each prompt what the critic reads: task, calls, reward."""
        found: dict[str, list[dict[str, Any]]] = {}
        first = self._search.first.prompts
        parent = self._search.book.find({n: self._template(first[n], t) for n, t in candidate.items()})
        self._origin = {"parents": [parent.candidate_id], "edited": list(components_to_update)}
        for name in components_to_update:
            agent = self._algorithm.agents.get(name, name)
            found[name] = [self._example(seen, agent) for seen in eval_batch.trajectories or ()]
        return found

    @staticmethod
    def _example(seen: tuple[Scored | None, str | None], agent: str) -> dict[str, Any]:
        scored, error = seen
        if scored is None:
            return {"Feedback": f"{error}. {KEEP}"}
        task = scored.task.content
        shown = task if isinstance(task, str) else json.dumps(task)
        return {
            "Inputs": shown,
            "Generated Outputs": in_words(scored, agent),
            "Feedback": f"reward {scored.reward:g} (higher is better). {KEEP}",
        }

    def reflect(self, prompt: Any) -> str:
        """Ask the critic. A request without a usable answer yields an empty text, which is counted."""
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._asked[digest] += 1
        key = f"gepa/{digest}/{self._asked[digest]}"
        ask = self._search.assistants.ask
        messages = [{"role": "user", "content": text}]
        try:
            made = self._on_loop(ask("critic", key, messages, read_critique, **self._algorithm.sampling))
        except BudgetSpent as error:
            self.spent = error
            return ""
        if made is None:
            return ""
        self._origin["critique"] = made.rollout_id
        return made.value
