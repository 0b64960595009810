"""``agl train``: train an agent as a configuration says."""

from __future__ import annotations

from typing import Annotated

import typer

from agentlightning.cli.options import AlwaysJson, Config, Sets, last_line, read
from agentlightning.train.configured import configure
from agentlightning.types.base import LEARNED_NOTHING

LAST_LINE = (
    "reward_before", "reward_after", "ci_before", "ci_after", "train_seconds", "seed", "sampled_before",
    "sampled_after", "calls", "calls_exact", "calls_no_ids", "logprob_gap_max", "total_seconds", "run_id",
)  # fmt: skip
"""Entries of the summary, or of its totals, in the last line of stdout."""


def register(app: typer.Typer) -> None:
    @app.command("train")
    def train(
        config: Config,
        seed: Annotated[int | None, typer.Option(help="Instead of training.seed.")] = None,
        steps: Annotated[int | None, typer.Option(help="Instead of training.steps.")] = None,
        run: Annotated[
            str | None, typer.Option("--run", help="Id of the run, which is the name of its folder.")
        ] = None,
        resume: Annotated[
            bool, typer.Option("--resume", help="Go on with --run, or the latest run of this agent and seed.")
        ] = False,
        stored: Annotated[
            list[str] | None,
            typer.Option(
                "--from",
                help="A run (id, folder, store) that sft, rejection, dpo learn from; again for more.",
            ),
        ] = None,
        rewards: Annotated[
            str | None, typer.Option(help="With --from: the rewards of `agl rescore` by this name.")
        ] = None,
        listen: Annotated[
            str | None, typer.Option(help="host:port of the gateway, instead of gateway.listen.")
        ] = None,
        advertise: Annotated[
            str | None, typer.Option(help="URL of the gateway for runners on other machines.")
        ] = None,
        sets: Sets = None,
        as_json: AlwaysJson = False,
    ) -> None:
        """Evaluate, train, evaluate. The last line of stdout is one JSON object; files lie in the run's
        folder. Exit status 3: nothing was learned.
        """
        trainer, agent, train_tasks, val_tasks = configure(
            read(
                config,
                sets,
                training__seed=seed,
                training__steps=steps,
                training__settings__runs=stored or None,
                training__settings__rewards=rewards,
                gateway__listen=listen,
                gateway__advertise=advertise,
                run=run,
                resume=resume or None,
            )
        )
        summary = trainer.fit(agent, train_tasks, val_tasks)
        found = {**summary.get("totals", {}), **summary}
        last_line({key: found.get(key) for key in LAST_LINE})
        if summary.get("learned") is False:
            raise typer.Exit(LEARNED_NOTHING)
