"""``agl eval``: score an agent with a policy on tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agentlightning.cli.options import AlwaysJson, Config, Sets, last_line, read
from agentlightning.plugins.manager import load as load_plugins
from agentlightning.train.config import RunConfig, from_fields
from agentlightning.train.configured import configure
from agentlightning.train.policies import fetch_pretrained
from agentlightning.train.session import finish
from agentlightning.types import Evaluation
from agentlightning.types.base import ConfigError
from agentlightning.types.work import missing_policy_message
from agl_audit.locations import STORE, NoSuchRun
from agl_audit.policies import find_policy


def register(app: typer.Typer) -> None:
    @app.command("eval")
    def evaluate(
        config: Config,
        policy: Annotated[
            list[str] | None,
            typer.Option(
                help="A run, a model folder, or a name of `agl policy list`, instead of backend.policy; "
                "NAME=FOLDER for one of several, again for others."
            ),
        ] = None,
        limit: Annotated[int | None, typer.Option(help="At most so many tasks.")] = None,
        sampled: Annotated[bool, typer.Option(help="Sample at temperature 1 instead of greedily.")] = False,
        samples: Annotated[
            int, typer.Option(min=1, help="Rollouts of each task, sampled: pass@k for k up to this many.")
        ] = 1,
        seed: Annotated[int | None, typer.Option(help="Instead of training.seed.")] = None,
        on: Annotated[
            list[str] | None,
            typer.Option(help="A set of evaluation.sets instead of environment.val; again for more."),
        ] = None,
        sets: Sets = None,
        as_json: AlwaysJson = False,
    ) -> None:
        """Print the mean reward on the held-out tasks, with --on on each named set, with its 95 % interval;
        with --samples also pass@k. The last line of stdout is one JSON object.
        """
        folders = {name: _folder(folder) for name, folder in map(_named, policy or ())}
        only = folders.pop("", None)
        loaded = read(config, sets, backend__policy=only, training__seed=seed, training__steps=0)
        trainer, agent, _, tasks = configure(_point(loaded, folders))
        greedy = not sampled and samples == 1
        if unknown := [name for name in on or () if name not in trainer.config.evaluation.sets]:
            known = ", ".join(trainer.config.evaluation.sets) or "it has none"
            raise ConfigError(
                f"--on {unknown[0]}: the configuration has no such set; evaluation.sets: {known}"
            )
        held_out = tasks[:limit] if limit else tasks
        last_line(asyncio.run(_evaluate(trainer, agent, held_out, greedy, samples, limit, on or ())))


def _named(given: str) -> tuple[str, str]:
    """Split ``NAME=FOLDER``; a folder alone has the name ``""``."""
    name, _, folder = ("", "", given) if Path(given).is_dir() else given.rpartition("=")
    return name, folder


def _folder(given: str) -> str:
    """Return the absolute path of a policy: a model folder, relative to the working directory, a run's, or
    the name of a plugin's pretrained policy.
    """
    if (Path(given) / STORE).is_file():
        return str(find_policy(given).folder.resolve())
    if Path(given).is_dir():
        return str(Path(given).resolve())
    if (fetched := fetch_pretrained(given, load_plugins())) is not None:
        return str(fetched)
    try:
        return str(find_policy(given).folder.resolve())
    except NoSuchRun as nowhere:
        raise ConfigError(f"--policy {missing_policy_message(given)}; and as a run: {nowhere}") from None


def _point(config: RunConfig, folders: dict[str, str]) -> RunConfig:
    """Return the configuration with other folders for some of its policies."""
    policy = config.backend.policy if isinstance(config.backend.policy, dict) else {}
    known = {name: given.path for name, given in policy.items() if getattr(given, "path", given)}
    for name, folder in folders.items():
        if name not in known:
            listed = ", ".join(known) or "none by name"
            raise ConfigError(f"--policy {name}={folder}: the configuration has the folders {listed}")
    return from_fields({"policy": {**policy, **folders}}, config) if folders else config


async def _evaluate(
    trainer: Any,
    agent: Any,
    tasks: Sequence[Any],
    greedy: bool,
    samples: int,
    limit: int | None = None,
    on: Sequence[str] = (),
) -> dict[str, Any]:
    """Evaluate on ``tasks``, or on the sets ``on``; end the run's record with the figures; return them."""
    async with trainer.session(agent, (), () if on else tasks) as context:
        chosen = {f"eval/{name}": context.sets[name][:limit] for name in on} or {"eval": tasks}
        made = {
            name: await context.evaluate(these, name=name, greedy=greedy, samples=samples)
            for name, these in chosen.items()
        }
        found = {name.removeprefix("eval/"): _figures(one, greedy) for name, one in made.items()}
        result = {"sets": found} if on else found["eval"]
        await finish(context, {"evaluation": result}, sum(one.seconds for one in made.values()))
        return {**result, "run_id": context.run_id}


def _figures(evaluation: Evaluation, greedy: bool) -> dict[str, Any]:
    """Return what is printed of an evaluation."""
    return {
        "reward": evaluation.reward,
        "ci": evaluation.ci and list(evaluation.ci),
        "n": evaluation.n,
        "interval": evaluation.interval,
        "failed": evaluation.failed,
        "left_out": evaluation.left_out,
        "reason": evaluation.reason,
        "greedy": greedy,
        "calls_made": evaluation.metrics["calls_made"],
        "calls_exact": evaluation.metrics["calls_exact"],
        "seconds": round(evaluation.seconds, 2),
        **{name: value for name, value in evaluation.metrics.items() if name.startswith("pass@")},
    }
