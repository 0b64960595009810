"""``agl eval``: score an agent with a policy on tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    @app.command("eval")
    def evaluate(
        config: Annotated[Path, typer.Option("--config", "-c", help="The run's YAML file.")],
        policy: Annotated[
            str | None, typer.Option(help="Folder of the policy, instead of backend.policy.")
        ] = None,
        limit: Annotated[int | None, typer.Option(help="At most so many tasks.")] = None,
        sampled: Annotated[bool, typer.Option(help="Sample at temperature 1 instead of greedily.")] = False,
        seed: Annotated[int | None, typer.Option(help="Instead of training.seed.")] = None,
        sets: Annotated[list[str] | None, typer.Option("--set", help="key=value.")] = None,
    ) -> None:
        """Mean reward on the held-out tasks with its 95 % interval. The last line of stdout is one JSON
        object.
        """
        from agentlightning.cli.run import last_line, read, trainer_from

        folder = str(Path(policy).resolve()) if policy else None
        loaded = read(config, sets, backend__policy=folder, training__seed=seed, training__steps=0)
        trainer, agent, _, tasks = trainer_from(loaded)
        last_line(asyncio.run(_evaluate(trainer, agent, tasks[:limit] if limit else tasks, not sampled)))


async def _evaluate(trainer: Any, agent: Any, tasks: list[Any], greedy: bool) -> dict[str, Any]:
    async with trainer.session(agent, (), tasks) as context:
        evaluation = await context.evaluate(tasks, name="eval", greedy=greedy)
        context.plugins.moment("agl_run_finished", summary={"evaluation": evaluation.model_dump()})
    return {
        "reward": evaluation.reward,
        "ci": evaluation.ci and list(evaluation.ci),
        "n": evaluation.n,
        "failed": evaluation.failed,
        "greedy": greedy,
        "calls_made": evaluation.metrics["calls_made"],
        "calls_exact": evaluation.metrics["calls_exact"],
        "seconds": round(evaluation.seconds, 2),
    }
