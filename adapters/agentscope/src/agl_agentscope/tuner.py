"""AgentScope's tuner on our trainer: import ``tune`` from here in place of ``agentscope.tuner``.

Workflow, judge, datasets and settings stay as they are. A workflow is an agent: its model asks the run's
policy through the gateway, the judge's reward (without a judge the workflow's own) is the rollout's, and the
metrics of both are rewards of their own names, recorded and not trained. A missing reward is not zero.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl
from agentlightning.types import LLM, Resource, UsageError

Function = Callable[..., Awaitable[Any]]
POLICY = "policy"
_LOG = logging.getLogger("agl_agentscope.tuner")
_SAMPLING = {"temperature", "top_p", "max_tokens"}
_RECIPES = {"multi_step_grpo": "grpo"}
"""Trinity's name of an algorithm → ours; every other is ours, or refused."""


def tune(
    *,
    workflow_func: Function,
    judge_func: Function | None = None,
    train_dataset: Any = None,
    eval_dataset: Any = None,
    model: Any = None,
    auxiliary_models: Mapping[str, Any] | None = None,
    algorithm: Any = None,
    project_name: str | None = None,
    experiment_name: str | None = None,
    monitor_type: str | None = None,
    config_path: str | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Train, and return the run's summary. The arguments are those of AgentScope 1.0.12 and later; a dataset
    may also be a list of tasks. ``fields``: those of :class:`agl.Trainer`, which win (``policy``, ``driver``,
    ``options``, …); how Trinity serves and shards a model is not read. ``config_path`` is Trinity's own file.
    """
    if config_path is not None:
        raise UsageError(
            "tune(config_path=…): that is a file of Trinity-RFT; give model, algorithm and train_dataset, or "
            "fields of agl.Trainer, in its place"
        )
    tasks = rows(train_dataset)
    given: dict[str, Any] = {"adapters": ["agentscope"], "options": {}}
    if model is not None:
        policy = _folder(model)
        helpers = {name: _folder(one, train=False) for name, one in (auxiliary_models or {}).items()}
        given["policy"] = {POLICY: policy, **helpers} if helpers else policy
        given["policies"] = {name: name for name in helpers}
    if algorithm is not None:
        given |= {
            "algorithm": _RECIPES.get(algorithm.algorithm_type, algorithm.algorithm_type),
            "recipe": {"group_size": algorithm.group_size},
            "batch_size": algorithm.batch_size,
            "evaluate_every": algorithm.eval_interval_steps,
        }
        given["options"] = {"lr": algorithm.learning_rate, "save_every": algorithm.save_interval_steps}
    epochs, steps = getattr(train_dataset, "total_epochs", 1), getattr(train_dataset, "total_steps", None)
    given |= {name: value for name, value in (("name", project_name), ("run", experiment_name)) if value}
    given |= {"trackers": ["default", monitor_type]} if monitor_type else {}
    given |= {**fields, "options": {**given["options"], **fields.get("options", {})}}
    if "steps" not in given:
        given["steps"] = steps or math.ceil(epochs * len(tasks) / given.get("batch_size", 8))
    trainer = agl.Trainer(**given)
    sampling = {} if model is None else _set(model)
    return trainer.fit(workflow(workflow_func, judge_func, sampling), tasks, rows(eval_dataset))


def workflow(
    function: Function, judge: Function | None = None, sampling: Mapping[str, Any] | None = None
) -> Any:
    """Return the agent that runs a workflow and asks its judge. ``sampling``: of its model calls."""
    asked, judged = set(inspect.signature(function).parameters), set()
    if judge is not None:
        judged = set(inspect.signature(judge).parameters)

    async def run(task: dict[str, Any], resources: Mapping[str, Resource]) -> Any:
        async with _Models(resources, sampling or {}) as models:
            own = models.pop(POLICY)
            known = {"task": task, "model": own, "auxiliary_models": models, "logger": _LOG}
            output = await function(**{name: known[name] for name in asked & known.keys()})
            if not hasattr(output, "reward"):  # up to 1.0.11 a workflow returns its reward
                return output
            verdict = output
            if judge is not None:
                known["response"] = output.response
                verdict = await judge(**{name: known[name] for name in judged & known.keys()})
        for name, value in {**(output.metrics or {}), **(verdict.metrics or {})}.items():
            agl.emit_reward(value, name=name, final=False)
        return verdict.reward

    run.__name__ = getattr(function, "__name__", "workflow")
    return agl.rollout(run)


def rows(dataset: Any) -> list[Any]:
    """Return the tasks of a ``DatasetConfig``, read by ``datasets`` as AgentScope does, or of a list."""
    if dataset is None or isinstance(dataset, Sequence):
        return list(dataset or ())
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError("a DatasetConfig is read by the library datasets: pip install datasets") from None
    return [dict(row) for row in load_dataset(path=dataset.path, name=dataset.name, split=dataset.split)]


class _Models:
    """AgentScope's models of a rollout by name, the run's own as ``policy``; their connections are closed."""

    def __init__(self, resources: Mapping[str, Resource], sampling: Mapping[str, Any]) -> None:
        self._llms = {name: one for name, one in resources.items() if isinstance(one, LLM)}
        self._sampling, self._made = sampling, dict[str, Any]()

    async def __aenter__(self) -> dict[str, Any]:
        from agentscope.model import OpenAIChatModel

        for name, llm in self._llms.items():
            one = OpenAIChatModel(llm.model, api_key=llm.api_key or "none", stream=False)
            one.client = AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none")
            self._made[name] = one
        own = POLICY if POLICY in self._made else next(iter(self._made))
        self._made[own].generate_kwargs = dict(self._sampling)
        return {POLICY if name == own else name: one for name, one in self._made.items()}

    async def __aexit__(self, *raised: object) -> None:
        for one in self._made.values():
            await one.client.close()


def _folder(model: Any, train: bool = True) -> Any:
    return model.model_path if train else agl.PolicyFolder(model.model_path, train=False)


def _set(model: Any) -> dict[str, Any]:
    """The sampling that a model's settings name."""
    return {name: getattr(model, name) for name in _SAMPLING & model.model_fields_set}
