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
from agl_audit.policies import NoPolicy, choose, policies_of, run_folder


def register(app: typer.Typer) -> None:
    @app.command("eval")
    def evaluate(
        config: Config,
        policy: Annotated[
            list[str] | None,
            typer.Option(
                help="A run, a model folder, or a name of `agl policy list`, instead of backend.policy; "
                "NAME=FOLDER or NAME=RUN for one of several, again for others."
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
        given = dict(map(_named, policy or ()))
        folders = {name: _folder(what, name) for name, what in given.items()}
        only = folders.pop("", None)
        try:
            loaded = read(config, sets, backend__policy=only, training__seed=seed, training__steps=0)
        except ConfigError:
            if only is None or not (served := read(config, sets).served).named:
                raise
            raise ConfigError(  # one policy for several: the file by itself is right
                f"--policy {given['']}: {config} names the policies {', '.join(served.names)}: give "
                f"--policy {served.names[0]}={given['']}"
            ) from None
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


def _folder(given: str, name: str = "") -> str:
    """Return the absolute path of a policy: a model folder, relative to the working directory, a run's, or
    the name of a plugin's pretrained policy. ``name``: the policy of the configuration that it stands for.
    """
    if (Path(given) / STORE).is_file():
        return _of_run(given, name)
    if Path(given).is_dir():
        return str(Path(given).resolve())
    if (fetched := fetch_pretrained(given, load_plugins())) is not None:
        return str(fetched)
    try:
        return _of_run(given, name)
    except NoSuchRun as nowhere:
        raise ConfigError(f"--policy {missing_policy_message(given)}; and as a run: {nowhere}") from None


def _of_run(given: str, name: str) -> str:
    """Return the folder of a run's policy: of the one called ``name``, or else of its only one."""
    policies = policies_of(run := run_folder(given))
    names = {one.name for one in policies if one.name}
    if name not in names and len(names) > 1:
        raise NoPolicy(
            f"--policy {given}: run {run.name} trained {', '.join(sorted(names))}: give the folder of the "
            f"one that you mean, such as {policies[0].folder}"
        )
    return str(choose(run, policies, None, name if name in names else None).folder.resolve())


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
