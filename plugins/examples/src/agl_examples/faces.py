"""``agl.GRPOTrainer`` and its siblings: :class:`~agentlightning.train.trainer.Trainer` in three words.

``GRPOTrainer(config=agl.RLConfig(episodes=512)).train(agent, eval_tasks=["math"])``
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlightning.algorithms.prompt_search import APO
from agentlightning.plugins.manager import load as load_plugins, pick
from agentlightning.runner.threads import run_sync
from agentlightning.store.base import Store
from agentlightning.store.pages import pages
from agentlightning.train.policies import fetch_pretrained
from agentlightning.train.trainer import Trainer
from agentlightning.types import UsageError
from agl_examples.bundled.task_set import tasks_of_sets
from agl_examples.early_keys import POLICY, steps_of

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class RLConfig:
    """``episodes``: rollouts to train on; or ``steps``: updates of ``batch_size`` tasks, each rolled out
    ``group_size`` times. ``model``: a folder, or a name of ``agl policy list``; ``None``: ``AGL_MODEL``, else
    the bundled policy. ``fields``: further fields of ``Trainer``.
    """

    algorithm: Any = None
    episodes: int | None = None
    steps: int | None = None
    learning_rate: float | None = None
    batch_size: int = 8
    group_size: int = 8
    model: str | Path | None = None
    seed: int = 1
    fields: dict[str, Any] = field(default_factory=dict)

    def trainer(self, algorithm: str, **given: Any) -> Trainer:
        """Return the trainer of this description. ``algorithm``: if it names none."""
        training: dict[str, Any] = {
            "batch_size": self.batch_size,
            "recipe": {"group_size": self.group_size},
        }
        if self.steps is not None:
            training["steps"] = self.steps
        if self.episodes is not None:
            training["steps"] = steps_of(self.episodes, training, "RLConfig")
        options = {} if self.learning_rate is None else {"lr": self.learning_rate}
        fields = {"policy": model_folder(self.model), "seed": self.seed, "options": options, **training}
        return Trainer(self.algorithm or algorithm, **{**fields, **self.fields, **given})


class GRPOTrainer:
    """Trains an agent with GRPO. ``store``: an open store, or its place; ``fields``: of ``Trainer``."""

    algorithm = "grpo"

    def __init__(self, config: RLConfig | None = None, store: Any = None, **fields: Any) -> None:
        self.config = config or RLConfig()
        self.store = store
        self._fields = fields if store is None else {"store": store, **fields}

    def train(
        self, agent: Any, eval_tasks: Sequence[Any] | str | None = None, val_tasks: Sequence[Any] = ()
    ) -> dict[str, Any]:
        """Train ``agent`` and return the run's summary.

        ``eval_tasks``: names of task sets (``math``, ``coding``, ``reasoning``, ``sql-generation``), whose
        held-out tasks are the evaluation, or tasks of your own, with ``val_tasks`` held out; ``None``: the
        inputs of the rollouts that the store has.
        """
        train, val = self._tasks(eval_tasks)
        return self.config.trainer(self.algorithm, **self._fields).fit(agent, train, list(val_tasks) or val)

    def _tasks(self, given: Sequence[Any] | str | None) -> tuple[list[Any], list[Any]]:
        if isinstance(given, str):
            given = [given]
        known = load_plugins().task_sets
        if given and all(isinstance(one, str) and one in known for one in given):
            return tasks_of_sets([str(one) for one in given])
        if given:
            return list(given), []
        found = run_sync(self._stored) if isinstance(self.store, Store) else []
        if not found:
            raise UsageError(
                "there are no tasks: give eval_tasks, names of task sets "
                f"({', '.join(sorted(known))}) or tasks of your own, or a store with rollouts"
            )
        return found, []

    async def _stored(self) -> list[Any]:
        """Return the different inputs of the store's rollouts, the first one first."""
        found: list[Any] = []
        assert isinstance(self.store, Store)
        async for page in pages(self.store.query_rollouts):
            for one in page:
                if one.input not in found:
                    found.append(one.input)
        return found


class RLOOTrainer(GRPOTrainer):
    """Trains an agent with RLOO."""

    algorithm = "rloo"


class SFTTrainer:
    """Fine-tunes a policy on chats, as ``agl sft``. ``settings``: ``epochs``, ``max_len``, ``freeze``."""

    def __init__(self, config: RLConfig | None = None, **settings: Any) -> None:
        self.config, self.settings = config or RLConfig(), settings

    def train(self, data: str | Path, output: str | Path, val: str | Path | None = None) -> dict[str, Any]:
        """Fine-tune, and return a summary; the policy lies in ``output``. ``data``, ``val``: JSONL files of
        chats, ``{"messages": […]}``.
        """
        finetune = pick(load_plugins().drivers, "driver", "local").finetune
        if finetune is None:
            raise UsageError("the driver 'local' fine-tunes nothing: install agl-local")
        settings = {"batch_size": self.config.batch_size, "seed": self.config.seed, **self.settings}
        if self.config.learning_rate is not None:
            settings["lr"] = self.config.learning_rate
        summary: dict[str, Any] = finetune(
            str(model_folder(self.config.model)),
            str(data),
            Path(output),
            None if val is None else str(val),
            settings,
        )
        return summary


class APOTrainer(GRPOTrainer):
    """Searches prompts: ``APOTrainer(critic=…, beam_rounds=2).train(agent, tasks, held_out, prompts)``.

    ``settings``: of ``agl.APO``. ``model``: the policy that the run serves to agents, a folder or a name of
    ``agl policy list``; ``None``: agents have their own endpoint. ``fields``: further fields of ``Trainer``.
    """

    algorithm = "apo"

    def __init__(
        self,
        *,
        model: str | Path | None = None,
        store: Any = None,
        fields: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(RLConfig(model=model), store, **dict(fields or {}))
        self.settings = settings

    def train(
        self,
        agent: Any,
        eval_tasks: Sequence[Any] | str | None = None,
        val_tasks: Sequence[Any] = (),
        prompts: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Search prompts for ``agent`` and return the run's summary. Tasks as of :meth:`GRPOTrainer.train`.

        ``prompts``: the first prompts by resource name.
        """
        train, val = self._tasks(eval_tasks)
        given = {"prompts": dict(prompts), **self.settings} if prompts else self.settings
        model = self.config.model
        policy: dict[str, Any] = {} if model is None else {"policy": model_folder(model)}
        trainer = Trainer(APO(**given), **{**policy, **self._fields})
        return trainer.fit(agent, train, list(val_tasks) or val)


def model_folder(model: str | Path | None) -> Path:
    """Return the folder of ``model``, else of ``AGL_MODEL``, else of the bundled policy, with a warning."""
    chosen = model or os.environ.get("AGL_MODEL")
    if not chosen:
        log.warning("no model is given: the bundled policy is trained, which knows only the task set math")
        chosen = POLICY
    if Path(chosen).is_dir():
        return Path(chosen)
    if (found := fetch_pretrained(chosen, load_plugins())) is None:
        raise UsageError(f"model: {chosen} is no folder and no name of `agl policy list`")
    return found
